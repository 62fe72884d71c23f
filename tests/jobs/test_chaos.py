"""Replicas are killed, stopped and replaced, Redis restarts, and every item still ends exactly once.

The items, the order of the faults and their victims come from one seed; only the moment at which a fault strikes
depends on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest
from corl_judge.jobs import Item, JobQueue, Lease, Outcome, ask
from corl_judge.redisio import connect

from corl.localredis import LocalRedis
from tests.jobs.chaos_worker import SETTINGS, main, truth
from tests.jobs.polling import DEADLINE_S, until

ITEMS = 2000
BATCH = 100
REPLICAS = 3
FAULTS = (
    ["kill"] * 5 + ["stop"] * 5 + ["terminate"] * 3 + ["restart redis"] * 2 + ["kill redis"] * 2 + ["late result"] * 3
)
SPECIAL = {"kills its worker": 2, "raises": 8, "raises once": 20, "slow": 60}


class Replicas:
    """Three processes, each replaced as soon as it is gone. A forking server makes replacements start at once."""

    def __init__(self, url: str, namespace: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.jobs.chaos_worker"])
        self._names = (f"replica-{n}" for n in itertools.count())
        self._address = (url, namespace)
        self.started = 0
        self.running: list[BaseProcess] = [self._start() for _ in range(REPLICAS)]

    def _start(self) -> BaseProcess:
        process = self._context.Process(target=main, args=(*self._address, next(self._names)), daemon=True)
        process.start()
        self.started += 1
        return process

    async def supervise(self) -> None:
        while True:
            for i, process in enumerate(self.running):
                if not process.is_alive():
                    process.join()
                    self.running[i] = await asyncio.to_thread(self._start)
            await asyncio.sleep(0.05)

    def signal(self, process: BaseProcess, number: int) -> None:
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, number)

    def end(self) -> None:
        for process in self.running:
            process.kill()  # SIGKILL ends a stopped process too
            process.join()


def make_items(random_: random.Random) -> list[Item]:
    payloads = [name.encode() for name, count in SPECIAL.items() for _ in range(count)]
    payloads += [b"plain"] * (ITEMS - len(payloads))
    random_.shuffle(payloads)
    return [Item(f"item-{i}", payload) for i, payload in enumerate(payloads)]


class Chaos:
    def __init__(self, server: LocalRedis, queue: JobQueue, replicas: Replicas, random_: random.Random) -> None:
        self.server, self.queue, self.replicas, self.random = server, queue, replicas, random_
        self.background: list[asyncio.Task[None]] = []
        self.struck: Counter[str] = Counter()

    async def strike(self, fault: str) -> None:
        victim = self.random.choice(self.replicas.running)
        self.struck[fault] += 1
        match fault:
            case "kill":
                self.replicas.signal(victim, signal.SIGKILL)
            case "terminate":
                self.replicas.signal(victim, signal.SIGTERM)
            case "stop":
                self.background.append(asyncio.create_task(self._stop_and_continue(victim)))
            case "restart redis" | "kill redis":
                if fault == "kill redis":
                    assert self.server.pid is not None
                    os.kill(self.server.pid, signal.SIGKILL)
                await asyncio.to_thread(self.server.stop)
                await asyncio.to_thread(self.server.start)
                await self.queue.redis.config_set("appendfsync", "always")
            case "late result":
                leases = await self.queue.claim("zombie", 4)
                self.background += [asyncio.create_task(self._complete_late(lease)) for lease in leases]

    async def _stop_and_continue(self, victim: BaseProcess) -> None:
        """Longer than the lease: its items are taken over, and it comes back believing that they are its own."""
        self.replicas.signal(victim, signal.SIGSTOP)
        await asyncio.sleep(SETTINGS.lease_s * 1.6)
        self.replicas.signal(victim, signal.SIGCONT)

    async def _complete_late(self, lease: Lease) -> None:
        """A worker that held an item in silence answers after another has: nobody may ever see what it says."""
        ended = await self.queue.wait([lease.job], timeout_s=DEADLINE_S * 3)
        assert lease.job in ended, f"{lease.key} was never taken over"
        assert not await self.queue.complete(lease, b"late, and wrong")


@pytest.fixture
def replicas(own_server: LocalRedis, redis_namespace: str) -> Iterator[Replicas]:
    replicas = Replicas(own_server.url, redis_namespace)
    yield replicas
    replicas.end()


@pytest.mark.timeout(600)
async def test_every_item_ends_exactly_once(own_server: LocalRedis, redis_namespace: str, replicas: Replicas) -> None:
    random_ = random.Random(20260817)
    redis = connect(own_server.url)
    await redis.config_set("appendfsync", "always")
    queue = JobQueue(redis, redis_namespace, SETTINGS)
    chaos = Chaos(own_server, queue, replicas, random_)
    supervisor = asyncio.create_task(replicas.supervise())
    items = make_items(random_)
    faults = random_.sample(FAULTS, len(FAULTS))
    asks: list[asyncio.Task[dict[str, Outcome]]] = []
    deadline_s = 400.0

    for start in range(0, ITEMS, BATCH):
        batch = items[start : start + BATCH]
        again = random_.sample(items[: start + BATCH], 20)  # duplicates of this batch and of earlier ones
        asks += [
            asyncio.create_task(ask(queue, wanted, asker=f"{name}-{start}", deadline_s=deadline_s))
            for name, wanted in (("first", batch), ("again", again))
        ]
        await until(lambda: redis.exists(queue.stream), "a submit")
        await chaos.strike(faults[start // BATCH])

        async def mostly_done(wanted: int = start + BATCH - 60) -> bool:
            stats = await queue.stats()
            return stats["done"] + stats["dead"] >= wanted

        await until(mostly_done, f"most of the first {start + BATCH} items")

    answers = await asyncio.gather(*asks)
    await asyncio.gather(*chaos.background)
    supervisor.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await supervisor

    assert chaos.struck == Counter(FAULTS)
    doomed = {item.key for item in items if item.payload in (b"kills its worker", b"raises")}
    for item in items:
        outcomes = [answer[item.key] for answer in answers if item.key in answer]
        assert outcomes, f"{item.key} has no outcome"
        for outcome in outcomes:
            if item.key in doomed:
                assert outcome.state == "dead"
                assert outcome.reason == ("failed" if item.payload == b"raises" else "lapsed")
            else:
                assert (outcome.state, outcome.result) == ("done", truth(item.key)), (item, outcome)
    assert sum(len(answer) for answer in answers) == ITEMS // BATCH * (BATCH + 20)

    dead = await queue.dead()
    assert {entry.key for entry in dead} == doomed
    assert (await queue.depth()).total == 0
    stats = await queue.stats()
    assert stats["done"] == ITEMS - len(doomed)
    assert stats["dead"] == len(dead) == stats["submitted"] - stats["done"]
    assert stats["late"] >= 1
    stored: Counter[str] = Counter()
    async for name in redis.scan_iter(f"{redis_namespace}:job:*", count=1000):
        key, state, result = await redis.hmget(name, "key", "state", "result")
        if state == b"done":
            stored[key.decode()] += 1
            assert result == truth(key.decode())
    assert stored == Counter({item.key: 1 for item in items if item.key not in doomed})
    await queue.aclose()
    await redis.aclose()
