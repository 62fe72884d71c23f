"""Waits for many jobs at once over one subscription.

A message is a hint: it only makes the waiter read the job. What was missed (sent before the subscription stood, or
while the connection was broken) is found by reading everything after each subscription and every `recheck_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from corl_judge.jobs.scripts import Scripts
from corl_judge.jobs.types import Outcome, State

__all__ = ["Waiter", "read_outcomes"]

log = logging.getLogger(__name__)

READ_CHUNK = 64
"""Jobs read in one script: results may be megabytes, and Redis does nothing else meanwhile."""


async def read_outcomes(scripts: Scripts, jobs: Collection[str]) -> list[Outcome | None]:
    """How each job ended; None while it has not."""
    ids = list(jobs)
    outcomes: list[Outcome | None] = []
    for start in range(0, len(ids), READ_CHUNK):
        chunk = ids[start : start + READ_CHUNK]
        rows = await scripts.run("read", *chunk)
        outcomes += [_outcome(job, row) for job, row in zip(chunk, rows, strict=True)]
    return outcomes


def _outcome(job: str, row: list[Any]) -> Outcome | None:
    state: State = row[0].decode()
    if state == "gone":
        return Outcome(job, "gone")
    if state in ("queued", "running"):
        return None
    _, key, value, reason, failures, lapses = row
    return Outcome(
        job,
        state,
        key.decode(),
        result=value if state == "done" else None,
        error=value if state == "dead" else None,
        reason=reason.decode() or None,
        failures=failures,
        lapses=lapses,
    )


@dataclass
class _Channel:
    """The jobs of one queue that somebody here waits for, and those of them that are to be read next."""

    scripts: Scripts
    waiting: dict[str, tuple[asyncio.Future[Outcome], int]] = field(default_factory=dict)
    due: set[str] = field(default_factory=set)


class Waiter:
    """One for a process, shared by its queues. Starts with the first wait; `aclose` ends it."""

    def __init__(self, redis: Redis, *, recheck_s: float = 2.0) -> None:
        self._redis = redis
        self._recheck_s = recheck_s
        self._channels: dict[str, _Channel] = {}
        self._pubsub: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()

    async def wait(
        self, namespace: str, scripts: Scripts, jobs: Collection[str], *, timeout_s: float, at_least: int | None = None
    ) -> dict[str, Outcome]:
        """See `JobQueue.wait`."""
        wanted = set(jobs)
        enough = len(wanted) if at_least is None else min(at_least, len(wanted))
        channel = await self._watch(namespace, scripts, wanted)
        futures = {job: channel.waiting[job][0] for job in wanted}
        try:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            open_ = set(futures.values())
            while len(futures) - len(open_) < enough and (left := deadline - loop.time()) > 0:
                _, open_ = await asyncio.wait(open_, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            return {job: future.result() for job, future in futures.items() if future.done()}
        finally:
            self._unwatch(channel, wanted)

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Which jobs ------------------------------------------------------------------------------------------------------

    async def _watch(self, namespace: str, scripts: Scripts, jobs: set[str]) -> _Channel:
        name = f"{namespace}:events"
        channel = self._channels.get(name)
        fresh = channel is None
        if channel is None:
            channel = self._channels[name] = _Channel(scripts)
        loop = asyncio.get_running_loop()
        for job in jobs:
            future, holders = channel.waiting.get(job) or (loop.create_future(), 0)
            channel.waiting[job] = (future, holders + 1)
        channel.due |= jobs
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._read())]
        elif fresh and self._pubsub is not None:
            with contextlib.suppress(RedisError):  # else the listener subscribes anew
                await self._pubsub.subscribe(name)
        self._wake.set()
        return channel

    def _unwatch(self, channel: _Channel, jobs: set[str]) -> None:
        for job in jobs:
            future, holders = channel.waiting[job]
            if holders > 1:
                channel.waiting[job] = (future, holders - 1)
            else:
                del channel.waiting[job]
                channel.due.discard(job)

    def _read_all(self) -> None:
        for channel in self._channels.values():
            channel.due |= channel.waiting.keys()
        self._wake.set()

    # Two tasks -------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Marks the jobs of messages as due; all of them whenever a subscription stands (again)."""
        while True:
            self._pubsub = self._redis.pubsub()
            try:
                await self._pubsub.subscribe(*self._channels)
                while True:
                    message = await self._pubsub.get_message(timeout=1.0)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        self._read_all()
                    elif message["type"] == "message":
                        channel = self._channels[message["channel"].decode()]
                        job = message["data"].decode()
                        if job in channel.waiting:
                            channel.due.add(job)
                            self._wake.set()
            except (RedisError, OSError) as error:
                log.debug("subscription lost: %s", error)
                await asyncio.sleep(random.uniform(0.05, 0.5))
            finally:
                pubsub, self._pubsub = self._pubsub, None
                with contextlib.suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _read(self) -> None:
        """Reads what is due and resolves what has ended; everything every `recheck_s`."""
        loop = asyncio.get_running_loop()
        recheck_at = loop.time() + self._recheck_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(recheck_at):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= recheck_at:
                self._read_all()
                self._wake.clear()
                recheck_at = loop.time() + self._recheck_s * random.uniform(0.75, 1.25)
            for channel in list(self._channels.values()):
                try:
                    await self._read_due(channel)
                except (RedisError, OSError) as error:
                    log.debug("jobs could not be read: %s", error)
                    await asyncio.sleep(random.uniform(0.05, 0.5))

    async def _read_due(self, channel: _Channel) -> None:
        while channel.due:
            chunk = [channel.due.pop() for _ in range(min(len(channel.due), READ_CHUNK))]
            try:
                outcomes = await read_outcomes(channel.scripts, chunk)
            except BaseException:
                channel.due |= channel.waiting.keys() & set(chunk)
                self._wake.set()
                raise
            for job, outcome in zip(chunk, outcomes, strict=True):
                watched = channel.waiting.get(job)
                if outcome is not None and watched is not None and not watched[0].done():
                    watched[0].set_result(outcome)
