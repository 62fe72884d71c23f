"""Whether work may be taken: closed while weights are reloaded and while the process drains."""

from __future__ import annotations

import asyncio

__all__ = ["Gate"]


class Gate:
    """Open or closed, for one worker and whoever commands it."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()
        self.open()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        self._closed.clear()
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()
        self._closed.set()

    async def wait_open(self) -> None:
        await self._opened.wait()

    async def wait_closed(self) -> None:
        await self._closed.wait()
