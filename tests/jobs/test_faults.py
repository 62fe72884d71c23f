"""What users of neighbouring projects ran into: waits without end, retries that join the dead, work lost with its
worker. Askers and workers are processes or tasks of their own, as at a judge."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import pytest
from corl_judge.engines.base import PromptRejected
from corl_judge.jobs import Item, JobQueue, Lease, Outcome, QueueFull, QueueSettings, ask
from corl_judge.worker import Done, Gate, Worker
from redis.asyncio import Redis

from tests.jobs.chaos_worker import SETTINGS, main, truth
from tests.jobs.polling import DEADLINE_S, until

StartReplica = Callable[[str], BaseProcess]


@pytest.fixture
def start_replica(redis_url: str, redis_namespace: str) -> Iterator[StartReplica]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.jobs.chaos_worker"])
    started: list[BaseProcess] = []

    def start(name: str) -> BaseProcess:
        process = context.Process(target=main, args=(redis_url, redis_namespace, name), daemon=True)
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def jobs(redis: Redis, redis_namespace: str) -> JobQueue:
    return JobQueue(redis, redis_namespace, SETTINGS)


def signal_to(process: BaseProcess, number: int) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def asking(queue: JobQueue, *items: Item, asker: str = "a") -> asyncio.Task[dict[str, Outcome]]:
    return asyncio.create_task(ask(queue, list(items), asker=asker, deadline_s=DEADLINE_S))


async def pending(queue: JobQueue, count: int) -> None:
    async def held() -> bool:
        return (await queue.depth()).pending == count

    await until(held, f"{count} items in the hands of workers")


async def test_a_replica_that_dies_amid_its_work_costs_latency_only(
    jobs: JobQueue, start_replica: StartReplica
) -> None:
    items = [Item(f"k{i}", b"slow") for i in range(8)]
    answer = asking(jobs, *items)
    first = start_replica("first")
    await pending(jobs, 8)
    first.kill()
    first.join()
    start_replica("second")
    outcomes = await answer
    assert {key: o.result for key, o in outcomes.items()} == {item.key: truth(item.key) for item in items}
    assert (await jobs.stats())["done"] == 8
    await jobs.aclose()


async def test_a_replica_that_was_frozen_beyond_its_lease_changes_nothing(
    jobs: JobQueue, start_replica: StartReplica
) -> None:
    answer = asking(jobs, Item("k", b"slow"))
    frozen = start_replica("frozen")
    await pending(jobs, 1)
    signal_to(frozen, signal.SIGSTOP)
    start_replica("other")
    assert (await answer)["k"].result == truth("k")
    signal_to(frozen, signal.SIGCONT)
    again = asking(jobs, Item("next", b"plain"))  # it works on, and nothing of the old item comes back
    assert (await again)["next"].result == truth("next")
    assert (await asking(jobs, Item("k", b"slow")))["k"].result == truth("k")
    assert (await jobs.stats())["done"] == 2
    await jobs.aclose()


async def test_a_replica_told_to_go_gives_its_work_back_at_once(jobs: JobQueue, start_replica: StartReplica) -> None:
    """Scaling down: not after the lease, and not counted against the items."""
    items = [Item(f"k{i}", b"slow") for i in range(8)]
    answer = asking(jobs, *items)
    leaving = start_replica("leaving")
    await pending(jobs, 8)
    signal_to(leaving, signal.SIGTERM)
    leaving.join(DEADLINE_S)
    assert leaving.exitcode == 0
    depth = await jobs.depth()
    assert (depth.waiting, depth.pending) == (8, 0)
    start_replica("staying")
    assert {o.lapses for o in (await answer).values()} == {0}
    await jobs.aclose()


async def test_replicas_that_come_later_share_the_work(jobs: JobQueue, start_replica: StartReplica) -> None:
    """Scaling up needs no word to anyone, and takes nothing twice."""
    items = [Item(f"k{i}", b"slow") for i in range(160)]
    answer = asking(jobs, *items)
    start_replica("r0")
    await pending(jobs, 8)
    for name in ("r1", "r2", "r3"):
        start_replica(name)
    seen: set[bytes] = set()

    async def all_at_work() -> bool:
        consumers = await jobs.redis.xinfo_consumers(jobs.stream, "workers")
        seen.update(consumer["name"] for consumer in consumers if consumer["pending"])
        return len(seen) == 4

    await until(all_at_work, "work in the hands of four replicas")
    assert {o.state for o in (await answer).values()} == {"done"}
    stats = await jobs.stats()
    assert (stats["done"], stats["submitted"]) == (160, 160)
    await jobs.aclose()


async def test_a_failure_reaches_every_waiter_and_a_retry_does_not_join_it(jobs: JobQueue) -> None:
    broken = True

    async def handler(_queue: str, _lease: Lease) -> Done:
        if broken:
            raise PromptRejected("broken")
        return Done(b"right")

    worker = Worker({"work": jobs}, handler, consumer="w", capacity=1)
    running = asyncio.create_task(worker.run())
    answers = await asyncio.gather(*(asking(jobs, Item("k", b""), asker=f"a{i}") for i in range(20)))
    assert {answer["k"].state for answer in answers} == {"dead"}
    broken = False
    assert (await asking(jobs, Item("k", b"")))["k"].result == b"right"
    await worker.stop()
    await running
    await jobs.aclose()


async def test_a_duplicates_disconnect_does_not_take_the_work_with_it(
    jobs: JobQueue, start_replica: StartReplica
) -> None:
    item = Item("k", b"slow")
    answers = [asking(jobs, item, asker=f"a{i}") for i in range(5)]
    start_replica("r0")
    await pending(jobs, 1)
    for answer in answers[:4]:
        answer.cancel()
    assert (await answers[4])["k"].result == truth("k")
    await asyncio.gather(*answers, return_exceptions=True)
    assert (await jobs.stats())["submitted"] == 1
    await jobs.aclose()


async def test_with_no_worker_at_all_every_wait_ends(jobs: JobQueue) -> None:
    items = [Item(f"k{i}", b"") for i in range(20)]
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(ask(jobs, items, asker=f"a{i}", deadline_s=0.2) for i in range(20)))
    assert answers == [{}] * 20  # nothing is made up for what did not come
    await jobs.aclose()


async def test_a_replacement_is_not_fed_before_it_is_ready(jobs: JobQueue) -> None:
    answer = asking(jobs, Item("k", b""))
    gate = Gate()
    gate.close()
    served: list[str] = []

    async def handler(_queue: str, lease: Lease) -> Done:
        assert gate.is_open
        served.append(lease.key)
        return Done(b"r")

    worker = Worker({"work": jobs}, handler, consumer="w", capacity=1, gate=gate)
    running = asyncio.create_task(worker.run())
    assert await jobs.wait([job for job in await jobs.find(["k"]) if job], timeout_s=0.3) == {}
    assert served == []
    gate.open()
    assert (await answer)["k"].result == b"r"
    await worker.stop()
    await running
    await jobs.aclose()


async def test_a_flood_is_refused_and_what_was_taken_is_done(redis: Redis, redis_namespace: str) -> None:
    """Thousands of requests at once: some are told to come again, none is lost, none is half taken."""
    queue = JobQueue(redis, redis_namespace, QueueSettings(max_depth=100))

    async def echo(_queue: str, lease: Lease) -> Done:
        return Done(lease.payload)

    async def request(i: int) -> tuple[dict[str, Outcome], int]:
        refused = 0
        while True:
            try:
                items = [Item(f"k{i}-{j}", b"%d-%d" % (i, j)) for j in range(4)]
                return await ask(queue, items, asker=f"a{i}", deadline_s=DEADLINE_S), refused
            except QueueFull:
                refused += 1
                await asyncio.sleep(0.2)

    worker = Worker({"work": queue}, echo, consumer="w", capacity=32)
    running = asyncio.create_task(worker.run())
    answers = await asyncio.gather(*(request(i) for i in range(150)))
    for i, (answer, _) in enumerate(answers):
        assert {key: o.result for key, o in answer.items()} == {f"k{i}-{j}": b"%d-%d" % (i, j) for j in range(4)}
    assert sum(refused for _, refused in answers) > 0
    assert (await queue.stats())["submitted"] == 600
    await worker.stop()
    await running
    await queue.aclose()
