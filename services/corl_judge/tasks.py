"""Ending background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ["end"]

AGAIN_S = 0.5


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and return when all have ended.

    Cancels again until then: a cancellation that arrives together with a result is lost in `asyncio.wait_for` before
    Python 3.12 (python/cpython#86296), and a loop that lost it would go on for ever.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
