"""Waits for many jobs at once over one subscription.

A message is a hint: it only makes the waiter read the job. What was missed (sent before the subscription stood, or
while the connection was broken) is found by reading everything after each subscription and every `recheck_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from corl_judge.jobs.scripts import Scripts
from corl_judge.jobs.types import Outcome

__all__ = ["Waiter", "Watch", "read_outcomes"]

log = logging.getLogger(__name__)

READ_CHUNK = 256
READ_BYTES = 4 << 20
"""What one script reads at most, or a little over: results may be megabytes, and Redis does nothing else meanwhile."""


async def read_outcomes(scripts: Scripts, jobs: Collection[str]) -> list[Outcome | None]:
    """How each job ended; None while it has not."""
    ids = list(jobs)
    outcomes: list[Outcome | None] = []
    while len(outcomes) < len(ids):
        chunk = ids[len(outcomes) : len(outcomes) + READ_CHUNK]
        rows = await scripts.run("read", READ_BYTES, *chunk)
        outcomes += [_outcome(job, row) for job, row in zip(chunk, rows, strict=False)]
    return outcomes


def _outcome(job: str, row: list[Any]) -> Outcome | None:
    state = row[0].decode()
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


class Watch:
    """The jobs that one asker waits for."""

    def __init__(self, jobs: Collection[str]) -> None:
        self.open = set(jobs)
        self._ended: dict[str, Outcome] = {}
        self._news = asyncio.Event()

    def end(self, outcome: Outcome) -> None:
        self.open.discard(outcome.job)
        self._ended[outcome.job] = outcome
        self._news.set()

    async def ended(self, timeout_s: float) -> dict[str, Outcome]:
        """Those that ended since the last call: at least one, or none at the end of `timeout_s`."""
        if not self._ended and timeout_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        self._news.clear()
        ended, self._ended = self._ended, {}
        return ended


@dataclass
class _Channel:
    """The jobs of one queue that somebody here waits for, and those of them that are to be read next."""

    scripts: Scripts
    watches: dict[str, list[Watch]] = field(default_factory=dict)
    due: set[str] = field(default_factory=set)


class Waiter:
    """One for a process, shared by its queues. Starts with the first watch; `aclose` ends it."""

    def __init__(self, redis: Redis, *, recheck_s: float = 2.0) -> None:
        self._redis = redis
        self._recheck_s = recheck_s
        self._channels: dict[str, _Channel] = {}
        self._pubsub: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()

    @contextlib.contextmanager
    def watch(self, namespace: str, scripts: Scripts, jobs: Collection[str]) -> Iterator[Watch]:
        """See `JobQueue.watch`. Must be entered in a running event loop."""
        watch = Watch(jobs)
        name = f"{namespace}:events"
        fresh = name not in self._channels
        channel = self._channels.setdefault(name, _Channel(scripts))
        for job in watch.open:
            channel.watches.setdefault(job, []).append(watch)
        channel.due |= watch.open
        self._wake.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._read())]
        elif fresh:
            self._tasks.append(asyncio.create_task(self._subscribe(name)))
        try:
            yield watch
        finally:
            for job in watch.open:
                watches = channel.watches[job]
                watches.remove(watch)
                if not watches:
                    del channel.watches[job]
                    channel.due.discard(job)

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _read_all(self) -> None:
        for channel in self._channels.values():
            channel.due |= channel.watches.keys()
        self._wake.set()

    async def _subscribe(self, name: str) -> None:
        """One channel more on the standing subscription; one that breaks is made anew with all of them."""
        with contextlib.suppress(RedisError, OSError):
            if self._pubsub is not None:
                await self._pubsub.subscribe(name)

    async def _listen(self) -> None:
        """Marks the jobs of messages as due; all of them whenever a subscription stands (again)."""
        while True:
            self._pubsub = pubsub = self._redis.pubsub()
            try:
                await pubsub.subscribe(*self._channels)
                while True:
                    message = await pubsub.get_message(timeout=1.0)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        self._read_all()
                    elif message["type"] == "message":
                        channel = self._channels[message["channel"].decode()]
                        job = message["data"].decode()
                        if job in channel.watches:
                            channel.due.add(job)
                            self._wake.set()
            except (RedisError, OSError) as error:
                log.debug("subscription lost: %s", error)
                await asyncio.sleep(random.uniform(0.05, 0.5))
            finally:
                self._pubsub = None
                with contextlib.suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _read(self) -> None:
        """Reads what is due and tells those who watch it; reads everything every `recheck_s`."""
        loop = asyncio.get_running_loop()
        recheck_at = loop.time() + self._recheck_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(recheck_at):
                    await self._wake.wait()
            if loop.time() >= recheck_at:
                self._read_all()
                recheck_at = loop.time() + self._recheck_s * random.uniform(0.75, 1.25)
            self._wake.clear()
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
                channel.due |= channel.watches.keys() & set(chunk)
                self._wake.set()
                raise
            for job, outcome in zip(chunk, outcomes, strict=True):
                if outcome is not None:
                    for watch in channel.watches.pop(job, []):
                        watch.end(outcome)
