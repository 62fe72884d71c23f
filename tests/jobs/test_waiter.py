"""Waiting: many at once, over one subscription, through lost messages and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from corl_judge.jobs import Item, JobQueue, QueueSettings, Waiter, ask
from corl_judge.redisio import connect
from redis.asyncio import Redis

from corl.localredis import LocalRedis
from tests.jobs.polling import DEADLINE_S, until


@pytest.fixture
async def elsewhere(redis_url: str, queue: JobQueue) -> AsyncIterator[JobQueue]:
    """The same queue in another process: other connections, nothing shared."""
    client = connect(redis_url)
    yield JobQueue(client, queue.namespace)
    await client.aclose()


async def submitted(queue: JobQueue, key: str) -> list[str]:
    async def found() -> bool:
        return await queue.find([key]) != [None]

    await until(found, f"a job for {key}")
    return [job for job in await queue.find([key]) if job]


async def finish(queue: JobQueue, count: int) -> None:
    for lease in await queue.claim("w1", count, DEADLINE_S):
        await queue.complete(lease, b"of " + lease.key.encode())


async def test_a_waiter_gets_what_ends_before_and_after_it_came(queue: JobQueue, elsewhere: JobQueue) -> None:
    tickets = await queue.submit_many([Item("x", b""), Item("y", b"")], asker="a")
    jobs = [ticket.job for ticket in tickets]
    await finish(elsewhere, 1)
    waiting = asyncio.create_task(queue.wait(jobs, timeout_s=DEADLINE_S))
    first = await queue.wait(jobs, timeout_s=DEADLINE_S, at_least=1)
    assert {o.key: o.result for o in first.values()} == {"x": b"of x"}
    await finish(elsewhere, 1)
    assert {o.key: o.result for o in (await waiting).values()} == {"x": b"of x", "y": b"of y"}


async def test_a_wait_is_bounded(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"", asker="a")).job
    assert await queue.wait([job], timeout_s=0.05) == {}
    assert await queue.wait([job], timeout_s=0.0) == {}
    assert await queue.wait([job], timeout_s=-1.0) == {}
    assert await queue.wait([], timeout_s=DEADLINE_S) == {}


async def test_every_end_wakes_a_waiter(queue: JobQueue, elsewhere: JobQueue) -> None:
    tickets = await queue.submit_many([Item(k, b"") for k in ("done", "dead", "cancelled")], asker="a")
    jobs = [ticket.job for ticket in tickets]
    waiting = asyncio.create_task(queue.wait([*jobs, "0197a3b2c4d-never"], timeout_s=DEADLINE_S))
    done, dead, _ = await elsewhere.claim("w1", 3)
    await elsewhere.complete(done, b"r")
    await elsewhere.fail(dead, b"e", final=True)
    await elsewhere.cancel(jobs[2:], asker="a")
    outcomes = await waiting
    assert [outcomes[job].state for job in jobs] == ["done", "dead", "cancelled"]
    assert outcomes[jobs[1]].error == b"e"
    assert outcomes["0197a3b2c4d-never"].state == "gone"


async def test_two_thousand_waiters_cost_few_connections(queue: JobQueue, elsewhere: JobQueue) -> None:
    items = [Item(f"k{i}", b"") for i in range(2000)]
    before = len(await elsewhere.redis.client_list())
    waits = [asyncio.create_task(ask(queue, [item], asker=item.key, deadline_s=DEADLINE_S)) for item in items]

    async def all_submitted() -> bool:
        return (await elsewhere.depth()).total == 2000

    await until(all_submitted, "2,000 items submitted")
    done = 0
    most = 0
    while done < 2000:
        leases = await elsewhere.claim("w1", 200, DEADLINE_S)
        await asyncio.gather(*(elsewhere.complete(lease, b"of " + lease.key.encode()) for lease in leases))
        done += len(leases)
        most = max(most, len(await elsewhere.redis.client_list()))
    answers = await asyncio.gather(*waits)
    assert [answer[item.key].result for answer, item in zip(answers, items, strict=True)] == [
        b"of " + item.key.encode() for item in items
    ]
    assert most - before <= 64  # of two clients with at most 32 each, for 2,000 waiters


async def test_results_that_are_large_together_are_all_read(queue: JobQueue, elsewhere: JobQueue) -> None:
    items = [Item(f"k{i}", b"") for i in range(12)]
    asking = asyncio.create_task(ask(queue, items, asker="a", deadline_s=DEADLINE_S))
    for lease in await elsewhere.claim("w1", 12, DEADLINE_S):
        await elsewhere.complete(lease, lease.key.encode() * 500_000)
    answer = await asking
    assert all(answer[item.key].result == item.key.encode() * 500_000 for item in items)
    again = await elsewhere.result([outcome.job for outcome in answer.values()])
    assert [outcome and outcome.result for outcome in again] == [o.result for o in answer.values()]


async def test_a_request_of_four_thousand_items(queue: JobQueue, elsewhere: JobQueue) -> None:
    items = [Item(f"k{i}", b"x" * 1000) for i in range(4096)]
    progress: list[int] = []
    asking = asyncio.create_task(ask(queue, items, asker="a", deadline_s=DEADLINE_S, on_progress=progress.append))
    for _ in range(4096 // 128):
        leases = await elsewhere.claim("w1", 128, DEADLINE_S)
        await asyncio.gather(*(elsewhere.complete(lease, b"of " + lease.key.encode()) for lease in leases))
    answer = await asking
    assert [answer[item.key].result for item in items] == [b"of " + item.key.encode() for item in items]
    assert progress == sorted(progress)
    assert progress[-1] == 4096


async def test_queues_of_a_process_share_a_waiter(redis: Redis, redis_namespace: str) -> None:
    waiter = Waiter(redis)
    queues = [JobQueue(redis, f"{redis_namespace}:{name}", waiter=waiter) for name in ("rollouts", "votes")]
    asks = [asyncio.create_task(ask(q, [Item("k", b"")], asker="a", deadline_s=DEADLINE_S)) for q in queues]
    for queue in queues:
        await finish(queue, 1)
    assert [answer["k"].result for answer in await asyncio.gather(*asks)] == [b"of k", b"of k"]
    subscriptions = await redis.pubsub_channels(f"{redis_namespace}*")
    assert len(subscriptions) == 2
    await waiter.aclose()


async def test_an_end_is_told_and_not_found_by_looking_again(
    redis: Redis, redis_namespace: str, elsewhere: JobQueue
) -> None:
    queue = JobQueue(redis, redis_namespace, waiter=Waiter(redis, recheck_s=24 * 3600.0))
    for i in range(20):
        job = (await queue.submit(f"k{i}", b"", asker="a")).job
        waiting = asyncio.create_task(queue.wait([job], timeout_s=DEADLINE_S))
        await finish(elsewhere, 1)  # at times before the subscription stands, at times after
        assert (await waiting)[job].result == b"of k%d" % i
    await queue.aclose()


async def test_lost_messages_only_delay(redis: Redis, redis_namespace: str, elsewhere: JobQueue) -> None:
    queue = JobQueue(redis, redis_namespace, waiter=Waiter(redis, recheck_s=0.1))
    job = (await queue.submit("k", b"", asker="a")).job
    waiting = asyncio.create_task(queue.wait([job], timeout_s=DEADLINE_S))
    await until(lambda: redis.pubsub_channels(f"{redis_namespace}*"), "a subscription")
    [client] = [c for c in await redis.client_list(_type="pubsub") if int(c["sub"]) == 1]
    [lease] = await elsewhere.claim("w1", 1)
    await redis.client_kill_filter(_id=client["id"])
    await elsewhere.complete(lease, b"r")
    assert (await waiting)[job].result == b"r"
    await queue.aclose()


async def test_a_cancelled_wait_leaves_the_others(queue: JobQueue, elsewhere: JobQueue) -> None:
    """An asker that goes away must not take shared work, or another's wait, with it."""
    item = Item("k", b"")
    leaving = asyncio.create_task(ask(queue, [item], asker="leaving", deadline_s=DEADLINE_S))
    staying = asyncio.create_task(ask(queue, [item], asker="staying", deadline_s=DEADLINE_S))
    [job] = await submitted(elsewhere, "k")

    async def both_asked() -> bool:
        return bool(await elsewhere.redis.scard(f"{queue.namespace}:askers:{job}") == 2)

    await until(both_asked, "two askers")
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await finish(elsewhere, 1)
    assert (await staying)["k"].result == b"of k"


async def test_work_stops_when_the_last_asker_goes(queue: JobQueue, elsewhere: JobQueue) -> None:
    asking = asyncio.create_task(ask(queue, [Item("k", b"")], asker="a", deadline_s=DEADLINE_S))
    [lease] = await elsewhere.claim("w1", 1, DEADLINE_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await elsewhere.renew([lease]) == {lease}
    assert (await elsewhere.depth()).total == 0


async def test_ask_leaves_out_what_the_deadline_cuts_off_and_the_work_goes_on(queue: JobQueue) -> None:
    items = [Item("x", b""), Item("y", b"")]
    asking = asyncio.create_task(ask(queue, items, asker="a", deadline_s=1.0))
    await finish(queue, 1)
    answer = await asking
    assert {key: o.result for key, o in answer.items()} == {"x": b"of x"}
    progress: list[int] = []
    again = asyncio.create_task(ask(queue, items, asker="a", deadline_s=DEADLINE_S, on_progress=progress.append))
    await finish(queue, 1)
    assert {key: o.result for key, o in (await again).items()} == {"x": b"of x", "y": b"of y"}
    assert progress[-1] == 2
    assert (await queue.stats())["submitted"] == 2


async def test_waiters_and_workers_survive_a_flush(own_server: LocalRedis) -> None:
    client = connect(own_server.url)
    queue = JobQueue(client, "n", QueueSettings(lease_s=60.0), waiter=Waiter(client, recheck_s=0.1))
    asking = asyncio.create_task(ask(queue, [Item("k", b"work")], asker="a", deadline_s=DEADLINE_S))
    [lost] = await queue.claim("w1", 1, DEADLINE_S)
    await client.flushall()
    [again] = await queue.claim("w1", 1, DEADLINE_S)
    assert again.job != lost.job
    assert again.payload == b"work"
    await queue.complete(again, b"result")
    assert (await asking)["k"].result == b"result"
    await queue.aclose()
    await client.aclose()


async def test_a_restart_with_the_append_only_file_loses_no_job(own_server: LocalRedis) -> None:
    client = connect(own_server.url)
    queue = JobQueue(client, "n", QueueSettings(lease_s=60.0))
    items = [Item(f"k{i}", b"work") for i in range(10)]
    asking = asyncio.create_task(ask(queue, items, asker="a", deadline_s=DEADLINE_S))
    held = await queue.claim("w1", 3, DEADLINE_S)
    await queue.complete(held[0], b"before")
    await asyncio.to_thread(own_server.stop)
    starting = asyncio.create_task(asyncio.to_thread(own_server.start))
    assert await queue.renew(held) == {held[0]}  # waits for the connection; leases outlived the restart
    await starting
    for lease in held[1:]:
        assert await queue.complete(lease, b"held")
    for lease in await queue.claim("w2", 20, DEADLINE_S):
        assert await queue.complete(lease, b"after")
    results = [(await asking)[item.key].result for item in items]
    assert results == [b"before", b"held", b"held", *[b"after"] * 7]
    await queue.aclose()
    await client.aclose()
