"""A work queue on a Redis stream and one consumer group. Every change is one Lua script, so that a process may be
killed, and a command sent twice, at any point.

- A key is one piece of work: whoever submits it again joins the job, or gets its stored result. A job that died or was
  cancelled is replaced, so that a retry is clean.
- A worker holds entries by lease and renews them while it owns them. Entries of a silent worker are taken over.
- The first result wins and is stored before the entry leaves; later ones are dropped.
- Entries leave by acknowledgement and deletion together; the stream is never trimmed. Every key expires.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from redis.asyncio import Redis

from corl_judge.jobs.scripts import Scripts
from corl_judge.jobs.types import (
    DeadItem,
    Depth,
    Item,
    Lease,
    Outcome,
    QueueFull,
    QueueSettings,
    SideWrite,
    State,
    Ticket,
)
from corl_judge.jobs.waiter import Waiter, Watch, read_outcomes

__all__ = ["JobQueue", "wait_for_work"]

GROUP = "workers"
LAPSED = b"every worker that took this item vanished: it may be what ends them"


class JobQueue:
    """All times are in seconds. Redis errors pass through; every method may then be called again.

    `redis` must not decode responses. With a hash tag in `namespace` (`corl:{a}:rollouts`) all keys share a slot.
    """

    def __init__(
        self, redis: Redis, namespace: str, settings: QueueSettings | None = None, *, waiter: Waiter | None = None
    ) -> None:
        self.redis = redis
        self.namespace = namespace
        self.settings = settings or QueueSettings()
        self.stream = f"{namespace}:work"
        self.cursor = "0-0"
        """Last entry id that had been delivered at the latest claim."""
        self._scripts = Scripts(redis, namespace, GROUP)
        self._waiter = waiter or Waiter(redis)
        self._reclaim_at = 0.0

    # Asking ----------------------------------------------------------------------------------------------------------

    async def submit(self, key: str, payload: bytes, *, asker: str, ttl_s: float | None = None) -> Ticket:
        """`submit_many` of one item."""
        [ticket] = await self.submit_many([Item(key, payload)], asker=asker, ttl_s=ttl_s)
        return ticket

    async def submit_many(self, items: Sequence[Item], *, asker: str, ttl_s: float | None = None) -> list[Ticket]:
        """One ticket an item, in order, all in one step. `asker` names who waits: see `cancel`.

        Raises QueueFull, with nothing taken, if the queue holds `max_depth` items and one of these would be new.
        """
        if not items:
            return []
        s = self.settings
        ttl = _ms(s.ttl_s if ttl_s is None else ttl_s)
        limit = -1 if s.max_depth is None else s.max_depth
        pairs = [field for item in items for field in (item.key, item.payload)]
        reply = await self._scripts.run("submit", secrets.token_hex(8), asker, ttl, _ms(s.stream_ttl_s), limit, *pairs)
        if reply[0] == b"full":
            raise QueueFull(self.namespace, reply[1], limit)
        return [
            Ticket(item.key, job.decode(), created == 1, _state(state), result)
            for item, (job, created, state, result) in zip(items, reply[1:], strict=True)
        ]

    async def cancel(self, jobs: Sequence[str], *, asker: str) -> list[State]:
        """Detach this asker. A job stops with its last asker: it leaves the stream if it waits, and its worker learns
        of it at the next renewal if it runs. Gives the state each job has then; asking twice changes nothing."""
        if not jobs:
            return []
        return [_state(state) for state in await self._scripts.run("cancel", asker, *jobs)]

    async def find(self, keys: Sequence[str]) -> list[str | None]:
        """The latest job of each key, if Redis still knows one."""
        if not keys:
            return []
        found = cast("Any", await self.redis.mget([f"{self.namespace}:key:{key}" for key in keys]))
        return [job.decode() if job else None for job in found]

    async def states(self, jobs: Sequence[str]) -> list[State]:
        """Without the results: for progress."""
        pipe = self.redis.pipeline(transaction=False)
        for job in jobs:
            pipe.hget(f"{self.namespace}:job:{job}", "state")
        return [_state(state) if state else "gone" for state in await pipe.execute()]

    async def result(self, jobs: Sequence[str]) -> list[Outcome | None]:
        """How each job ended; None while it has not."""
        return await read_outcomes(self._scripts, jobs)

    def watch(self, jobs: Collection[str]) -> AbstractContextManager[Watch]:
        """Wait for jobs as they end: `with queue.watch(jobs) as watch: ... await watch.ended(timeout_s)`.

        However many watch in a process, they cost one subscription. A lost message or a restart of Redis delays a
        watcher by the re-check period at most.
        """
        return self._waiter.watch(self.namespace, self._scripts, jobs)

    async def wait(self, jobs: Collection[str], *, timeout_s: float, at_least: int | None = None) -> dict[str, Outcome]:
        """The outcomes of those jobs that end within `timeout_s`; returns once `at_least` (all) of them have."""
        wanted = set(jobs)
        enough = len(wanted) if at_least is None else min(at_least, len(wanted))
        deadline = time.monotonic() + timeout_s
        outcomes: dict[str, Outcome] = {}
        with self.watch(wanted) as watch:
            while len(outcomes) < enough:
                ended = await watch.ended(deadline - time.monotonic())
                if not ended:
                    break
                outcomes |= ended
        return outcomes

    # Working ---------------------------------------------------------------------------------------------------------

    async def claim(
        self, consumer: str, count: int, block_s: float = 0.0, *, held: Iterable[Lease] | None = None
    ) -> list[Lease]:
        """Up to `count` items: lapsed ones first, then new ones. Empty after `block_s` without any.

        `held` is what the consumer holds now; given that, entries that are in its name but that it does not know
        (a reply was lost) are handed over again, and it is given no second suspect.
        """
        deadline = time.monotonic() + block_s
        known = None if held is None else list(held)
        while True:
            leases = await self._claim_once(consumer, count, known)
            left = deadline - time.monotonic()
            if leases or left <= 0:
                return leases
            await wait_for_work([self], left)

    async def _claim_once(self, consumer: str, count: int, held: list[Lease] | None) -> list[Lease]:
        s = self.settings
        now = time.monotonic()
        reclaim = now >= self._reclaim_at
        if reclaim:
            self._reclaim_at = now + s.lease_s / 8
        suspects = 0 if any(lease.lapses >= s.suspect_after for lease in held or ()) else 1
        reply = await self._scripts.run(
            "claim",
            consumer,
            count,
            _ms(s.lease_s),
            s.max_lapses,
            int(reclaim),
            suspects,
            s.suspect_after,
            LAPSED,
            s.dead_kept,
            _ms(s.stream_ttl_s),
            int(held is not None),
            *(lease.entry for lease in held or ()),
        )
        self.cursor = reply[0].decode()
        return [
            Lease(job.decode(), key.decode(), entry.decode(), consumer, payload, failures, lapses)
            for entry, job, key, payload, failures, lapses in reply[1:]
        ]

    async def renew(self, leases: Sequence[Lease]) -> set[Lease]:
        """Extend leases of one consumer that it still owns. Gives those it does not: taken over, ended, cancelled."""
        if not leases:
            return set()
        pairs = [field for lease in leases for field in (lease.job, lease.entry)]
        lost = await self._scripts.run("renew", leases[0].consumer, _ms(self.settings.lease_s), *pairs)
        names = {entry.decode() for entry in lost}
        return {lease for lease in leases if lease.entry in names}

    async def complete(self, lease: Lease, result: bytes, also: Sequence[SideWrite] = ()) -> bool:
        """Store the result, write `also` and remove the entry in one step. False if the job had ended before."""
        writes = [field for write in also for field in (write.key, write.value, _ms(write.ttl_s))]
        return bool(await self._scripts.run("complete", lease.job, lease.entry, lease.consumer, result, *writes))

    async def fail(
        self, lease: Lease, error: bytes, *, final: bool = False, infrastructure: bool = False
    ) -> State | None:
        """The work raised. It is queued again until `max_failures`, then it is dead; with `final` at once (the same
        input will always fail). A fault of the infrastructure is not the item's and is not counted.

        Gives the job's state, or None if the lease was lost: then nothing changed.
        """
        return await self._end_lease(lease, "release" if infrastructure else "final" if final else "fail", error)

    async def release(self, lease: Lease) -> State | None:
        """Give the item back at once, uncounted. None if the lease was lost."""
        return await self._end_lease(lease, "release", b"")

    async def lapse(self, lease: Lease) -> State | None:
        """Let the lease lapse now: this worker is about to vanish, maybe by this item. None if it was lost."""
        return await self._end_lease(lease, "lapse", b"")

    async def _end_lease(self, lease: Lease, mode: str, error: bytes) -> State | None:
        s = self.settings
        state = await self._scripts.run(
            "fail",
            lease.job,
            lease.entry,
            lease.consumer,
            mode,
            error,
            s.max_failures,
            s.dead_kept,
            _ms(s.stream_ttl_s),
        )
        return None if state == b"lost" else _state(state)

    async def leave(self, consumer: str) -> bool:
        """Forget a consumer that stops. False if it still holds entries; they lapse as usual."""
        return bool(await self._scripts.run("leave", consumer))

    async def sweep(self) -> list[str]:
        """Forget consumers that hold nothing and were silent for `consumer_ttl_s`."""
        return [name.decode() for name in await self._scripts.run("sweep", _ms(self.settings.consumer_ttl_s))]

    # Looking ---------------------------------------------------------------------------------------------------------

    async def depth(self) -> Depth:
        """Items that have not ended."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.xlen(self.stream)
        pipe.xpending(self.stream, GROUP)
        total, pending = await pipe.execute(raise_on_error=False)
        if isinstance(total, Exception):
            raise total
        held = 0 if isinstance(pending, Exception) else pending["pending"]  # no group yet: nobody holds anything
        return Depth(waiting=max(total - held, 0), pending=held)

    async def dead(self, count: int = 1000) -> list[DeadItem]:
        """The dead stream, newest first."""
        entries = cast("Any", await self.redis.xrevrange(f"{self.namespace}:dead", count=count))
        return [
            DeadItem(
                job=fields[b"job"].decode(),
                key=fields[b"key"].decode(),
                reason=fields[b"reason"].decode(),
                error=fields[b"error"],
                failures=int(fields[b"failures"]),
                lapses=int(fields[b"lapses"]),
                payload=fields[b"payload"],
                at=int(entry.split(b"-")[0]) / 1000,
            )
            for entry, fields in entries
        ]

    async def stats(self) -> Mapping[str, int]:
        """Counts since the queue was first used: submitted, done, dead, cancelled, failed, lapsed, late."""
        counts = cast("Any", await self.redis.hgetall(f"{self.namespace}:stats"))
        names = ("submitted", "done", "dead", "cancelled", "failed", "lapsed", "late")
        return {name: int(counts.get(name.encode(), 0)) for name in names}

    async def aclose(self) -> None:
        """End the subscription; the connections belong to whoever made them."""
        await self._waiter.aclose()


async def wait_for_work(queues: Sequence[JobQueue], block_s: float) -> None:
    """Return when an entry arrives that the latest claims could not see, an entry may have lapsed, or after `block_s`.

    Takes nothing, so it can be cancelled without an entry being handed to nobody (as XREADGROUP would).
    """
    poll_s = min(min(queue.settings.lease_s for queue in queues) / 4, block_s, 5.0)
    # BLOCK 0 would wait for ever.
    streams = cast("Any", {queue.stream: queue.cursor for queue in queues})
    await queues[0].redis.xread(streams, count=1, block=max(int(poll_s * 1000), 1))


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _state(value: bytes) -> State:
    return cast("State", value.decode())
