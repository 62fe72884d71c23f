"""The thread that owns a transformers model: it decodes batches and, between them, runs commands that need the model
to itself."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from corl_judge.engines.base import EngineDead
from corl_judge.engines.batching import Batcher, Job

__all__ = ["ModelThread"]

Result = TypeVar("Result")
Command = Callable[[], None]


class ModelThread:
    """Jobs and commands are taken in order; a command starts when all jobs before it are done, and jobs behind it wait.

    `batcher` is set by the first command, the one that loads the model.
    """

    def __init__(self) -> None:
        self.batcher: Batcher | None = None
        self.death: Future[str] = Future()
        self._inbox: queue.SimpleQueue[Sequence[Job] | Command | None] = queue.SimpleQueue()
        self._pending: deque[Sequence[Job] | Command] = deque()
        self._closing = threading.Lock()  # between a last submission and the death of the thread
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current token; what is unfinished ends with EngineDead. Blocks."""
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._closing:
            if not self.death.done():
                self._inbox.put(jobs)
                return
        for job in jobs:
            job.end(EngineDead(self.death.result()))

    def call(self, work: Callable[[], Result]) -> Future[Result]:
        """Run `work` in the thread with no job running. Once started it runs to its end, even if nobody waits."""
        done: Future[Result] = Future()

        def command() -> None:
            if self.death.done():
                done.set_exception(EngineDead(self.death.result()))
            elif done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)

        with self._closing:
            if not self.death.done():
                self._inbox.put(command)
                return done
        command()
        return done

    def _run(self) -> None:
        cause = "the engine was stopped"
        try:
            while self._take():
                if self.batcher is not None and self.batcher.busy:
                    self.batcher.step()
        except BaseException as error:
            cause = f"{type(error).__name__}: {error}"
        with self._closing:
            self.death.set_result(cause)
            while not self._inbox.empty():
                if (item := self._inbox.get()) is not None:
                    self._pending.append(item)
        if self.batcher is not None:
            self.batcher.fail_all(EngineDead(cause))
        for item in self._pending:
            if callable(item):
                item()
            else:
                for job in item:
                    job.end(EngineDead(cause))

    def _take(self) -> bool:
        """Receive what was sent, waiting for it only when there is nothing else to do. False to stop."""
        idle = not self._pending and (self.batcher is None or not self.batcher.busy)
        while idle or not self._inbox.empty():
            item = self._inbox.get()
            if item is None:
                return False
            self._pending.append(item)
            idle = False
        while self._pending:
            head = self._pending[0]
            if callable(head):
                if self.batcher is not None and self.batcher.busy:
                    break
                self._pending.popleft()
                head()
            else:
                assert self.batcher is not None
                self._pending.popleft()
                for job in head:
                    self.batcher.add(job)
        return True
