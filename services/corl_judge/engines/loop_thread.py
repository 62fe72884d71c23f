"""An event loop in a thread of its own, for a library whose objects belong to one loop and keep it busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from corl_judge.engines.base import EngineDead

__all__ = ["LoopThread"]

Result = TypeVar("Result")


class LoopThread:
    """Coroutines are run in the thread's loop and awaited from any other."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`; cancelling the caller cancels it. Raises EngineDead if the thread is stopped meanwhile."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EngineDead("the engine was stopped") from None

    async def run_to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`, which goes on if the caller is cancelled."""
        return await asyncio.shield(self.run(work))

    async def stop(self) -> None:
        """Cancel what still runs and end the thread."""
        if self.running:
            await self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
