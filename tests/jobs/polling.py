"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Return once the condition holds; fail, saying what did not come, at the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None
