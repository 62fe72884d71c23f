"""The worker loop: what becomes of an item by what its handler does, and of all when the worker stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from corl_judge.engines.base import EngineDead, EngineError, PromptRejected
from corl_judge.jobs import Item, JobQueue, Lease, Outcome, QueueSettings, SideWrite
from corl_judge.redisio import connect
from corl_judge.worker import Done, Gate, Handler, InfrastructureFault, Worker, decode_error, fair_shares
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from corl.localredis import LocalRedis
from tests.jobs.polling import DEADLINE_S, until


@asynccontextmanager
async def working(
    queues: JobQueue | Mapping[str, JobQueue], handler: Handler, *, capacity: int = 4, **options: object
) -> AsyncIterator[Worker]:
    named = {"work": queues} if isinstance(queues, JobQueue) else queues
    worker = Worker(named, handler, consumer="w1", capacity=capacity, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await worker.stop(grace_s=0.0)
            await task


async def echo(_queue: str, lease: Lease) -> Done:
    return Done(b"of " + lease.payload)


def raising(error: BaseException) -> Handler:
    async def handler(_queue: str, _lease: Lease) -> Done:
        raise error

    return handler


class Held:
    """A handler that holds its items until it is told to let them go."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.release = asyncio.Event()

    async def __call__(self, queue: str, lease: Lease) -> Done:
        self.started.append(f"{queue}:{lease.key}")
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(f"{queue}:{lease.key}")
            raise
        return Done(b"of " + lease.payload)

    async def count(self, wanted: int) -> None:
        await until(lambda: _when(lambda: len(self.started) == wanted), f"{wanted} items started")


async def _when(condition: Callable[[], bool]) -> bool:
    return condition()


async def outcome(queue: JobQueue, job: str) -> Outcome:
    return (await queue.wait([job], timeout_s=DEADLINE_S))[job]


def again(queue: JobQueue) -> JobQueue:
    """The same queue seen by another process."""
    return JobQueue(queue.redis, queue.namespace, queue.settings)


async def test_items_of_all_queues_are_done_with_their_side_writes(redis: Redis, redis_namespace: str) -> None:
    queues = {name: JobQueue(redis, f"{redis_namespace}:{name}") for name in ("rollouts", "votes")}
    vote = f"{redis_namespace}:vote"

    async def handler(name: str, lease: Lease) -> Done:
        return Done(name.encode() + lease.payload, (SideWrite(vote, b"filed", 60.0),))

    async with working(queues, handler):
        for name, queue in queues.items():
            tickets = await queue.submit_many([Item(f"k{i}", b"%d" % i) for i in range(20)], asker="a")
            outcomes = await queue.wait([t.job for t in tickets], timeout_s=DEADLINE_S)
            assert [outcomes[t.job].result for t in tickets] == [name.encode() + b"%d" % i for i in range(20)]
            await queue.aclose()
    assert await redis.get(vote) == b"filed"


@pytest.mark.parametrize(
    ("error", "kind", "failures"),
    [
        (PromptRejected("300 tokens, the model takes 256"), "invalid", 1),
        (EngineError("out of blocks"), "engine", 3),
        (TimeoutError(), "timeout", 3),
        (KeyError("x"), "internal", 3),
        (asyncio.CancelledError(), "internal", 3),
    ],
)
async def test_errors_end_an_item_dead(queue: JobQueue, error: BaseException, kind: str, failures: int) -> None:
    """Deterministic refusals at once, what may pass at the third failure; askers are told at once."""
    async with working(queue, raising(error)):
        ended = await outcome(queue, (await queue.submit("k", b"", asker="a")).job)
    assert (ended.state, ended.failures) == ("dead", failures)
    assert ended.error is not None
    assert decode_error(ended.error) == (kind, str(error) or type(error).__name__)


@pytest.mark.parametrize("fault", [InfrastructureFault("no disk"), RedisConnectionError("gone")])
async def test_infrastructure_faults_are_retried_without_end(queue: JobQueue, fault: Exception) -> None:
    tries = 0

    async def handler(_queue: str, lease: Lease) -> Done:
        nonlocal tries
        tries += 1
        if tries <= 4:
            raise fault
        assert lease.failures == 0
        return Done(b"r")

    async with working(queue, handler):
        assert (await outcome(queue, (await queue.submit("k", b"", asker="a")).job)).result == b"r"
    assert (await queue.stats())["failed"] == 0


async def test_one_failure_leaves_the_others_alone(queue: JobQueue) -> None:
    async def handler(_queue: str, lease: Lease) -> Done:
        if lease.key == "bad":
            raise ValueError("bad")
        return Done(b"r")

    async with working(queue, handler):
        tickets = await queue.submit_many([Item(k, b"") for k in ("x", "bad", "y")], asker="a")
        ended = await queue.wait([t.job for t in tickets], timeout_s=DEADLINE_S)
    assert [ended[t.job].state for t in tickets] == ["done", "dead", "done"]


async def test_no_more_than_its_capacity_is_in_flight(queue: JobQueue) -> None:
    held = Held()
    await queue.submit_many([Item(f"k{i}", b"") for i in range(10)], asker="a")
    async with working(queue, held, capacity=3) as worker:
        await held.count(3)
        assert (await queue.depth()).pending == 3
        assert worker.in_flight == 3
        held.release.set()
        await held.count(10)


async def test_idle_workers_share_what_comes_at_once(queue: JobQueue) -> None:
    """Each has room for all of it; one that took it all would leave the others none of a step."""
    held = [Held() for _ in range(3)]
    queues = [again(queue) for _ in held]
    workers = [
        Worker({"work": own}, handler, consumer=f"w{i}", capacity=64)
        for i, (own, handler) in enumerate(zip(queues, held, strict=True))
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        # Idle: each has looked, found nothing, and waits for the stream.
        await asyncio.sleep(0.2)
        await queue.submit_many([Item(f"k{i}", b"") for i in range(24)], asker="a")
        await until(lambda: _when(lambda: sum(len(h.started) for h in held) == 24), "all items started")
        assert min(len(h.started) for h in held) >= 2
    finally:
        for h in held:
            h.release.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(worker.stop(grace_s=5.0) for worker in workers), *running)


async def test_neither_queue_starves_the_other(redis: Redis, redis_namespace: str) -> None:
    queues = {name: JobQueue(redis, f"{redis_namespace}:{name}") for name in ("rollouts", "votes")}
    held = Held()
    await queues["rollouts"].submit_many([Item(f"k{i}", b"") for i in range(100)], asker="a")
    async with working(queues, held, capacity=8):
        await held.count(8)  # alone, one queue has it all
        await queues["votes"].submit_many([Item(f"k{i}", b"") for i in range(100)], asker="a")
        held.release.set()
        votes = queues["votes"]
        await until(lambda: _drained(votes), "the votes done")
        behind = await queues["rollouts"].depth()
    done = [name.partition(":")[0] for name in held.started]
    first = done.index("votes")
    shares = [done[first : first + 100].count(name) for name in queues]
    assert min(shares) >= 30, f"rollouts and votes among 100 items: {shares}; left {behind}"


async def _drained(queue: JobQueue) -> bool:
    return (await queue.depth()).total == 0


def test_shares_even_out_what_is_held() -> None:
    assert fair_shares([0, 0], 8) == [4, 4]
    assert fair_shares([8, 0], 3) == [0, 3]
    assert fair_shares([3, 1], 4) == [1, 3]
    assert fair_shares([5], 2) == [2]
    assert fair_shares([0, 0], 0) == [0, 0]


async def test_a_closed_gate_stops_claims_and_the_worker_drains(queue: JobQueue) -> None:
    """What a reload of weights needs: nothing in flight, nothing taken, until it opens."""
    held, gate = Held(), Gate()
    await queue.submit_many([Item(f"k{i}", b"") for i in range(6)], asker="a")
    async with working(queue, held, capacity=2, gate=gate) as worker:
        await held.count(2)
        gate.close()
        draining = asyncio.create_task(worker.drained())
        held.release.set()
        async with asyncio.timeout(DEADLINE_S):
            await draining
        assert held.started == ["work:k0", "work:k1"]
        assert (await queue.depth()).pending == 0
        await queue.submit("late", b"", asker="a")
        gate.open()
        await held.count(7)


async def test_closing_the_gate_again_and_again_loses_nothing(queue: JobQueue) -> None:
    gate = Gate()
    running = 0

    async def handler(_queue: str, lease: Lease) -> Done:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        running -= 1
        return Done(lease.payload)

    tickets = await queue.submit_many([Item(f"k{i}", b"%d" % i) for i in range(200)], asker="a")
    waiting = asyncio.create_task(queue.wait([t.job for t in tickets], timeout_s=DEADLINE_S))
    async with working(queue, handler, capacity=8, gate=gate) as worker:
        while not waiting.done():
            gate.close()
            await worker.drained()
            assert running == worker.in_flight == 0
            gate.open()
            await asyncio.sleep(0.005)
    ended = await waiting
    assert [ended[t.job].result for t in tickets] == [b"%d" % i for i in range(200)]
    stats = await queue.stats()
    assert (stats["lapsed"], stats["failed"], stats["late"]) == (0, 0, 0)


async def test_leases_are_renewed_while_the_work_goes_on(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=0.6))
    held = Held()
    job = (await queue.submit("k", b"x", asker="a")).job
    async with working(queue, held):
        await held.count(1)
        # Longer than the lease, and long enough that the server grants no grace for having just started.
        assert await again(queue).claim("thief", 1, block_s=2.0) == []
        held.release.set()
        assert (await outcome(queue, job)).result == b"of x"
    await queue.aclose()


async def test_a_lost_lease_ends_the_handler(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=0.3))
    held = Held()
    job = (await queue.submit("k", b"x", asker="a")).job
    async with working(queue, held) as worker:
        await held.count(1)
        await queue.cancel([job], asker="a")
        await until(lambda: _when(lambda: held.cancelled == ["work:k"]), "the handler cancelled")
        await until(lambda: _when(lambda: worker.in_flight == 0), "nothing in flight")
    assert (await queue.stats())["late"] == 0


async def test_stopping_finishes_what_is_in_flight(queue: JobQueue) -> None:
    held = Held()
    await queue.submit_many([Item(f"k{i}", b"x") for i in range(5)], asker="a")
    async with working(queue, held, capacity=2) as worker:
        await held.count(2)
        stopping = asyncio.create_task(worker.stop(grace_s=DEADLINE_S))
        held.release.set()
        await stopping
    assert len(held.started) == 2
    assert (await queue.stats())["done"] == 2
    assert await queue.redis.xinfo_consumers(queue.stream, "workers") == []


async def test_stopping_gives_back_what_cannot_finish(queue: JobQueue) -> None:
    held = Held()
    await queue.submit_many([Item(f"k{i}", b"x") for i in range(5)], asker="a")
    async with working(queue, held, capacity=2) as worker:
        await held.count(2)
        await worker.stop(grace_s=0.01)
    assert sorted(held.cancelled) == ["work:k0", "work:k1"]
    leases = await again(queue).claim("w2", 10)  # at once, not after the lease
    assert sorted(lease.key for lease in leases) == [f"k{i}" for i in range(5)]
    assert {(lease.failures, lease.lapses) for lease in leases} == {(0, 0)}


async def test_a_dead_engine_ends_the_worker_and_counts_as_a_lapse(queue: JobQueue) -> None:
    """The process is about to go, as if it had been killed; an item that always does this must not go on for ever."""
    told: list[EngineDead] = []
    started: list[str] = []

    async def handler(_queue: str, lease: Lease) -> Done:
        started.append(lease.key)
        if lease.key == "k1":
            await until(lambda: _when(lambda: len(started) == 2), "both started")
            raise EngineDead("CUDA error")
        await asyncio.Event().wait()
        raise AssertionError

    await queue.submit_many([Item(f"k{i}", b"") for i in range(3)], asker="a")
    worker = Worker({"work": queue}, handler, consumer="w1", capacity=2, on_engine_dead=told.append)
    async with asyncio.timeout(DEADLINE_S):
        await worker.run()
    assert [str(error) for error in told] == ["CUDA error"]
    leases = await again(queue).claim("w2", 10)
    assert {lease.key: (lease.failures, lease.lapses) for lease in leases} == {"k0": (0, 1), "k1": (0, 1), "k2": (0, 0)}


async def test_a_result_waits_for_a_redis_that_is_away(own_server: LocalRedis) -> None:
    local = own_server
    client = connect(local.url)
    queue = JobQueue(client, "n", QueueSettings(lease_s=60.0))
    held = Held()
    job = (await queue.submit("k", b"x", asker="a")).job
    async with working(queue, held) as worker:
        await held.count(1)
        await asyncio.to_thread(local.stop)
        held.release.set()
        await asyncio.sleep(0)
        await asyncio.to_thread(local.start)
        assert (await outcome(queue, job)).result == b"of x"
        await until(lambda: _when(lambda: worker.in_flight == 0), "nothing in flight")
    assert (await queue.stats())["done"] == 1
    await queue.aclose()
    await client.aclose()


async def test_settings_are_checked(queue: JobQueue) -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        Worker({"work": queue}, echo, consumer="w", capacity=0)
    with pytest.raises(ValueError, match="at least one queue"):
        Worker({}, echo, consumer="w", capacity=1)
