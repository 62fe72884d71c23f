"""The loop that feeds the engine from the queues.

A worker keeps up to `capacity` items in flight over its queues, renews their leases, and stops claiming while its gate
is closed. How an item ends depends on what its handler does:

| the handler | the item |
| --- | --- |
| returns | its result is stored, unless another worker's was first |
| raises PromptRejected | dead at once: the same prompt will always be refused |
| raises EngineDead | its lease lapses, like those of the others in flight; the worker ends and says so |
| raises a Redis or `InfrastructureFault` error | given back, not counted |
| raises anything else | counted, and tried again by whoever is free |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from redis.exceptions import RedisError

from corl_judge.engines.base import EngineDead, EngineError, PromptRejected
from corl_judge.gate import Gate
from corl_judge.jobs import JobQueue, Lease, SideWrite, wait_for_work
from corl_judge.jobs.errors import decode_error, encode_error

__all__ = ["Done", "Gate", "Handler", "InfrastructureFault", "Worker", "decode_error", "encode_error", "fair_shares"]

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 2.0
"""Longest pause between tries while Redis, or something else that handlers need, is away."""
BITE = 2
"""Items claimed at a time. Idle replicas wake together: one that took all it has room for would leave the others none
of a step, and a step lasts as long as its slowest replica."""
GIVE_BACK_S = 2.0
"""Longest that a stopping worker tries to give an item back; then its lease lapses."""


class InfrastructureFault(Exception):
    """What the work needs is not there (storage, another service). Not the item's fault: it is given back."""


@dataclass(frozen=True, slots=True)
class Done:
    """A handler's result, and what is written beside it in the same step."""

    result: bytes
    also: tuple[SideWrite, ...] = ()


Handler = Callable[[str, Lease], Awaitable[Done]]
"""Given the queue's name and the lease. It is cancelled when the lease is lost."""


@dataclass(eq=False, slots=True)
class _InFlight:
    """`handling` until the handler is through; `ended_by` says why this worker cancelled it, if it did."""

    name: str
    lease: Lease
    task: asyncio.Task[None] | None = None
    handling: bool = True
    ended_by: Literal["lost", "stop", "engine"] | None = None

    def cancel(self, why: Literal["lost", "stop", "engine"]) -> None:
        """End the handler. An outcome that is being stored is left to it: it may still be the first."""
        if self.task is not None and self.handling and self.ended_by is None:
            self.ended_by = why
            self.task.cancel()


class Worker:
    """`queues` by name, on one Redis. `consumer` must be this process's alone.

    `on_engine_dead` is called once, when a handler raised EngineDead; `run` then gives everything up and returns, and
    the process should exit.
    """

    def __init__(
        self,
        queues: Mapping[str, JobQueue],
        handler: Handler,
        *,
        consumer: str,
        capacity: int,
        gate: Gate | None = None,
        grace_s: float = 30.0,
        on_engine_dead: Callable[[EngineDead], None] | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: give at least 1 item in flight")
        if not queues:
            raise ValueError("a worker needs at least one queue")
        self.queues = dict(queues)
        self.consumer = consumer
        self.capacity = capacity
        self.gate = gate or Gate()
        self._handler = handler
        self._grace_s = grace_s
        self._on_engine_dead = on_engine_dead
        self._engine_dead = False
        self._running: set[_InFlight] = set()
        self._claiming = False
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._finished = asyncio.Event()
        self._faults = 0
        self._resume_at = 0.0
        self._lease_s = min(queue.settings.lease_s for queue in self.queues.values())

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def drained(self) -> None:
        """Return when nothing is in flight and nothing is being claimed. Close the gate first."""
        while self._running or self._claiming:
            self._changed.clear()
            await self._changed.wait()

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop claiming, let what is in flight finish for `grace_s`, give back the rest, return when `run` has."""
        if grace_s is not None:
            self._grace_s = grace_s
        self._stopping.set()
        await self._finished.wait()

    async def run(self) -> None:
        """Work until `stop` is called, the engine is dead, or this task is cancelled."""
        helpers = [asyncio.create_task(self._renew_forever()), asyncio.create_task(self._sweep_forever())]
        try:
            await self._claim_forever()
            await self._finish_in_flight()
        finally:
            for helper in helpers:
                helper.cancel()
            await self._give_up_in_flight()
            await asyncio.gather(*helpers, return_exceptions=True)
            for queue in self.queues.values():
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    async with asyncio.timeout(GIVE_BACK_S):
                        await queue.leave(self.consumer)
            self._finished.set()

    # Claiming --------------------------------------------------------------------------------------------------------

    async def _claim_forever(self) -> None:
        queues = list(self.queues.values())
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            if not self.gate.is_open:
                await _first(self.gate.wait_open(), self._stopping.wait())
            elif (pause := self._resume_at - clock()) > 0:
                await _first(asyncio.sleep(pause), self._stopping.wait())
            elif (free := self.capacity - len(self._running)) <= 0:
                self._changed.clear()
                await _first(self._changed.wait(), self._stopping.wait())
            else:
                try:
                    if not await self._claim(free):
                        await _first(
                            wait_for_work(queues, self._lease_s), self._stopping.wait(), self.gate.wait_closed()
                        )
                except (RedisError, OSError) as error:
                    self._pause(f"work cannot be claimed: {error}")

    async def _claim(self, free: int) -> int:
        """Claims and starts up to `free` items, fairly over the queues; gives how many there were."""
        self._claiming = True
        claimed = 0
        empty: set[str] = set()
        try:
            while free > claimed and len(empty) < len(self.queues) and self._wanted():
                names = [name for name in self.queues if name not in empty]
                held = [[item.lease for item in self._running if item.name == name] for name in names]
                shares = fair_shares([len(leases) for leases in held], min(free - claimed, BITE * len(names)))
                for name, leases, share in zip(names, held, shares, strict=True):
                    if share and self._wanted():
                        got = await self.queues[name].claim(self.consumer, share, held=leases)
                        if len(got) < share:
                            empty.add(name)
                        claimed += len(got)
                        await self._start(name, got)
            return claimed
        finally:
            self._claiming = False
            self._changed.set()

    def _wanted(self) -> bool:
        return self.gate.is_open and not self._stopping.is_set()

    async def _start(self, name: str, leases: Sequence[Lease]) -> None:
        """Starts the handlers, unless the gate was closed while the claim was under way."""
        for lease in leases:
            if self._wanted():
                item = _InFlight(name, lease)
                item.task = asyncio.create_task(self._work(item))
                self._running.add(item)
            else:
                await self.queues[name].release(lease)

    def _pause(self, why: str) -> None:
        """Claims nothing for a while that grows with every fault in a row."""
        self._faults += 1
        pause = min(0.05 * 2.0 ** min(self._faults, 10), RETRY_S) * random.uniform(0.5, 1.0)
        self._resume_at = asyncio.get_running_loop().time() + pause
        log.warning("%s; going on in %.2g s", why, pause)

    # Working ---------------------------------------------------------------------------------------------------------

    async def _work(self, item: _InFlight) -> None:
        queue, lease = self.queues[item.name], item.lease
        try:
            try:
                try:
                    done = await self._handler(item.name, lease)
                finally:
                    item.handling = False
            except asyncio.CancelledError as error:
                await self._cancelled(item, queue, lease, error)
            except EngineDead as error:
                self._engine_died(error)
                await self._give_back(queue.lapse(lease))
            except (InfrastructureFault, RedisError) as error:
                self._pause(f"job {lease.job} was given back: {type(error).__name__}: {error}")
                await self._settle(partial(queue.release, lease))
            except Exception as error:
                if not isinstance(error, PromptRejected):
                    log.warning("job %s failed", lease.job, exc_info=error)
                await self._fail(queue, lease, error)
            else:
                await self._settle(partial(queue.complete, lease, done.result, done.also))
                self._faults = 0
        except asyncio.CancelledError:
            pass  # ended while it stored the outcome: the lease lapses
        finally:
            self._running.discard(item)
            self._changed.set()

    async def _cancelled(self, item: _InFlight, queue: JobQueue, lease: Lease, error: BaseException) -> None:
        if item.ended_by == "stop":
            await self._give_back(queue.release(lease))
        elif item.ended_by == "engine":
            await self._give_back(queue.lapse(lease))
        elif item.ended_by is None:  # not by this worker: something inside the handler
            await self._fail(queue, lease, error)

    async def _fail(self, queue: JobQueue, lease: Lease, error: BaseException) -> None:
        match error:
            case PromptRejected():
                kind = "invalid"
            case TimeoutError():
                kind = "timeout"
            case EngineError():
                kind = "engine"
            case _:
                kind = "internal"
        final = isinstance(error, PromptRejected)
        await self._settle(partial(queue.fail, lease, encode_error(kind, error), final=final))

    async def _settle(self, write: Callable[[], Awaitable[T]]) -> T:
        """Finished work is not thrown away because Redis is: write until it takes it, or the task is cancelled."""
        pause = 0.05
        while True:
            try:
                return await write()
            except (RedisError, OSError) as error:
                log.warning("an outcome cannot be stored yet: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, RETRY_S)

    async def _give_back(self, write: Awaitable[object]) -> None:
        """One try: where it fails, the lease lapses."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await write

    def _engine_died(self, error: EngineDead) -> None:
        self._stopping.set()
        if not self._engine_dead:
            self._engine_dead = True
            log.error("the engine is dead: %s", error)
            if self._on_engine_dead is not None:
                self._on_engine_dead(error)

    # Ending ----------------------------------------------------------------------------------------------------------

    async def _finish_in_flight(self) -> None:
        tasks = [item.task for item in self._running if item.task is not None]
        if tasks and not self._engine_dead:
            await asyncio.wait(tasks, timeout=self._grace_s)

    async def _give_up_in_flight(self) -> None:
        tasks = [item.task for item in self._running if item.task is not None]
        for item in list(self._running):
            item.cancel("engine" if self._engine_dead else "stop")
        if tasks:
            await asyncio.wait(tasks, timeout=2 * GIVE_BACK_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Leases ----------------------------------------------------------------------------------------------------------

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for name, queue in self.queues.items():
                held = {item.lease: item for item in self._running if item.name == name}
                try:
                    lost = await queue.renew(list(held))
                except (RedisError, OSError) as error:
                    log.warning("leases cannot be renewed: %s", error)
                    continue
                for lease in lost:
                    log.info("job %s is no longer this worker's", lease.job)
                    held[lease].cancel("lost")

    async def _sweep_forever(self) -> None:
        while True:
            for queue in self.queues.values():
                with contextlib.suppress(RedisError, OSError):
                    await queue.sweep()
            await asyncio.sleep(min(queue.settings.consumer_ttl_s for queue in self.queues.values()) / 4)


def fair_shares(held: Sequence[int], free: int) -> list[int]:
    """How many of `free` slots each queue gets so that the numbers held come as near to equal as they can."""
    shares = [0] * len(held)
    for _ in range(free):
        least = min(range(len(held)), key=lambda i: held[i] + shares[i])
        shares[least] += 1
    return shares


async def _first(*waits: Awaitable[object]) -> None:
    """Return, or raise, as the first of these does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
