"""The vote book: histograms of a member's answers in Redis, filed once and read by any asker under its own policy.

Keys: in a run (run, step, problem id); without a run, or without a step, the weights' digest stands for the step.
Filing is SET NX by whoever completes the work first (in one transaction with the work's result, see `jobs.SideWrite`),
so the first writer wins. Votes of a run are indexed by step, so that old steps, and the steps that a restarted cohort
will do again, can be dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack
from redis.exceptions import RedisError

from corl.wire import VoteSource, WeightsTag
from corl_judge.tasks import end

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["Filed", "VoteBook", "VoteKey", "text_id"]

POLL_S = 0.03
SLOWEST_POLL_S = 0.25
CHUNK = 1000


@dataclass(frozen=True, slots=True)
class VoteKey:
    """`problem` is a problem id in a run, else a hash of all that was asked. `slot` is a step; a weights digest; or
    `step@digest` where the vote of the step itself is of weights too old for its asker."""

    run: str | None
    slot: int | str
    problem: str

    def under(self, digest: str) -> VoteKey:
        """The key for the weights that really sampled: another only where a digest is part of it."""
        if isinstance(self.slot, int):
            return self
        step, at, _ = self.slot.rpartition("@")
        return VoteKey(self.run, f"{step}{at}{digest}", self.problem)

    def name(self) -> str:
        problem = hashlib.sha256(self.problem.encode()).hexdigest()[:32]
        return f"{self.run or '-'}:{self.slot}:{problem}"


@dataclass(frozen=True, slots=True)
class Filed:
    """What the book holds under a key. `histogram` is packed (`Histogram.to_bytes`): few who hold it read it."""

    histogram: bytes
    weights: WeightsTag
    source: VoteSource

    def to_bytes(self) -> bytes:
        tag = (self.weights.incarnation, self.weights.version, self.weights.digest)
        packed: bytes = msgpack.packb((self.histogram, tag, self.source))
        return packed

    @classmethod
    def from_bytes(cls, packed: bytes) -> Filed:
        histogram, (incarnation, version, digest), source = msgpack.unpackb(packed)
        tag = WeightsTag(incarnation=incarnation, version=version, digest=digest)
        return cls(histogram, tag, source)


def text_id(*parts: str) -> str:
    """An id of texts that no concatenation can confuse."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


class VoteBook:
    """`ttl_s` bounds how long a vote is kept, whatever its step."""

    def __init__(self, redis: Redis, namespace: str, *, ttl_s: float) -> None:
        self._redis: Any = redis  # the client's own types are unions over its options
        self._prefix = f"{namespace}:vote"
        self._index = f"{namespace}:votes"
        self.ttl_s = ttl_s
        self._watched: dict[VoteKey, set[asyncio.Event]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def redis_key(self, key: VoteKey) -> str:
        return f"{self._prefix}:{key.name()}"

    async def read(self, keys: Sequence[VoteKey]) -> dict[VoteKey, Filed]:
        """Those that are filed, in one round trip a thousand."""
        found: dict[VoteKey, Filed] = {}
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            values = await self._redis.mget([self.redis_key(key) for key in chunk])
            found.update({k: Filed.from_bytes(v) for k, v in zip(chunk, values, strict=True) if v is not None})
        return found

    async def file(self, votes: Mapping[VoteKey, Filed]) -> None:
        """File those that are not there: results that were stored before their votes were dropped, or lost."""
        ttl_ms = int(self.ttl_s * 1000)
        await self.index(votes)
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, filed in votes.items():
                pipe.set(self.redis_key(key), filed.to_bytes(), nx=True, px=ttl_ms)
            if len(pipe):
                await pipe.execute()

    async def index(self, keys: Iterable[VoteKey]) -> None:
        """Note keys under their step before they are filed, so that dropping a step finds every one of them."""
        steps: dict[tuple[str, int], list[str]] = {}
        for key in keys:
            if key.run is not None and isinstance(key.slot, int):
                steps.setdefault((key.run, key.slot), []).append(self.redis_key(key))
        if not steps:
            return
        ttl_ms = int(self.ttl_s * 1000)
        async with self._redis.pipeline(transaction=False) as pipe:
            for (run, step), members in steps.items():
                pipe.sadd(f"{self._index}:{run}:{step}", *members)
                pipe.pexpire(f"{self._index}:{run}:{step}", ttl_ms)
                pipe.zadd(f"{self._index}:{run}", {str(step): step})
                pipe.pexpire(f"{self._index}:{run}", ttl_ms)
            await pipe.execute()

    async def drop(self, run: str, *, before: int | None = None, after: int | None = None) -> int:
        """Delete the votes of steps below `before` or above `after`; how many there were."""
        low, high = ("-inf", f"({before}") if after is None else (f"({after}", "+inf")
        dropped = 0
        for raw in await self._redis.zrangebyscore(f"{self._index}:{run}", low, high):
            step = raw.decode()
            members = [m.decode() for m in await self._redis.smembers(f"{self._index}:{run}:{step}")]
            for start in range(0, len(members), CHUNK):
                dropped += await self._redis.unlink(*members[start : start + CHUNK])
            await self._redis.unlink(f"{self._index}:{run}:{step}")
            await self._redis.zrem(f"{self._index}:{run}", step)
        return dropped

    async def wait(self, keys: Sequence[VoteKey], timeout_s: float) -> None:
        """Return when any of the keys is filed, or after `timeout_s`. All waits of a process share one poller."""
        if not keys or timeout_s <= 0:
            return
        event = asyncio.Event()
        for key in keys:
            self._watched.setdefault(key, set()).add(event)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="votebook-poller")
        self._wake.set()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
        finally:
            for key in keys:
                waiting = self._watched[key]
                waiting.discard(event)
                if not waiting:
                    del self._watched[key]

    @property
    def watched(self) -> int:
        """Keys that somebody here waits for."""
        return len(self._watched)

    async def close(self) -> None:
        if self._poller is not None:
            await end([self._poller])

    async def _poll(self) -> None:
        pause = POLL_S
        while self._watched:
            self._wake.clear()
            started = time.monotonic()
            keys = list(self._watched)
            try:
                filed = await self._filed(keys)
            except RedisError:
                filed = []
            for key in filed:
                for event in self._watched.get(key, ()):
                    event.set()
            # The more keys are watched, and the longer nothing comes, the rarer the looks: one look costs little of
            # the time between two.
            pause = POLL_S if filed else min(SLOWEST_POLL_S, pause * 1.3)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(pause, 4 * (time.monotonic() - started)))
            await asyncio.sleep(0)

    async def _filed(self, keys: list[VoteKey]) -> list[VoteKey]:
        found: list[VoteKey] = []
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in chunk:
                    pipe.exists(self.redis_key(key))
                found += [key for key, there in zip(chunk, await pipe.execute(), strict=True) if there]
        return found
