"""JobQueue's rules, one by one, through its public methods."""

from __future__ import annotations

import asyncio
import time

import pytest
from corl_judge.jobs import Item, JobId, JobQueue, Lease, QueueFull, QueueSettings, SideWrite
from corl_judge.jobs.types import Depth
from redis.asyncio import Redis

from tests.jobs.polling import DEADLINE_S


async def claim_one(queue: JobQueue, consumer: str = "w1") -> Lease:
    [lease] = await queue.claim(consumer, 1)
    return lease


async def claim_lapsed(queue: JobQueue, consumer: str) -> Lease:
    """Waits for a lease of another consumer to lapse."""
    [lease] = await queue.claim(consumer, 1, DEADLINE_S)
    return lease


def other(queue: JobQueue, **settings: float) -> JobQueue:
    """The same queue seen by another process."""
    return JobQueue(queue.redis, queue.namespace, QueueSettings(**settings))  # type: ignore[arg-type]


# Submit --------------------------------------------------------------------------------------------------------------


async def test_an_item_goes_through(queue: JobQueue) -> None:
    ticket = await queue.submit("k", b"work", asker="a")
    assert (ticket.created, ticket.state, ticket.result) == (True, "queued", None)
    lease = await claim_one(queue)
    assert (lease.job, lease.key, lease.payload, lease.failures, lease.lapses) == (ticket.job, "k", b"work", 0, 0)
    assert await queue.states([ticket.job]) == ["running"]
    assert await queue.complete(lease, b"result")
    [outcome] = await queue.result([ticket.job])
    assert outcome is not None
    assert (outcome.state, outcome.key, outcome.result) == ("done", "k", b"result")
    assert await queue.depth() == Depth(0, 0)


async def test_a_key_is_one_job_and_its_result_is_given_again(queue: JobQueue) -> None:
    first = await queue.submit("k", b"work", asker="a")
    second = await queue.submit("k", b"work", asker="b")
    assert (second.job, second.created) == (first.job, False)
    assert (await queue.depth()).total == 1
    await queue.complete(await claim_one(queue), b"\x00result\xff")
    third = await queue.submit("k", b"work", asker="c")
    assert (third.job, third.created, third.state, third.result) == (first.job, False, "done", b"\x00result\xff")
    assert await queue.claim("w1", 1) == []


async def test_a_batch_is_in_order_and_may_hold_a_key_twice(queue: JobQueue) -> None:
    tickets = await queue.submit_many([Item("x", b"1"), Item("y", b"2"), Item("x", b"1")], asker="a")
    assert [t.key for t in tickets] == ["x", "y", "x"]
    assert tickets[0].job == tickets[2].job != tickets[1].job
    assert [t.created for t in tickets] == [True, True, False]
    assert [lease.key for lease in await queue.claim("w1", 10)] == ["x", "y"]
    assert await queue.submit_many([], asker="a") == []


async def test_submit_sent_again_reads_as_the_first_time(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose connection breaks before the reply sends the same command, nonce and all, again."""
    monkeypatch.setattr("corl_judge.jobs.queue.secrets.token_hex", lambda _n: "00112233aabbccdd")
    first = await queue.submit("k", b"work", asker="a")
    again = await queue.submit("k", b"work", asker="a")
    assert again == first
    assert (await queue.depth()).total == 1


async def test_concurrent_submits_of_one_key_make_one_job(queue: JobQueue) -> None:
    tickets = await asyncio.gather(*(queue.submit("k", b"work", asker=f"a{i}") for i in range(50)))
    assert len({t.job for t in tickets}) == 1
    assert sum(t.created for t in tickets) == 1
    assert len(await queue.claim("w1", 10)) == 1


async def test_full_refuses_new_work_and_takes_nothing_of_it(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(max_depth=2))
    await queue.submit_many([Item("x", b""), Item("y", b"")], asker="a")
    with pytest.raises(QueueFull, match="holds 2 items, its limit is 2"):
        await queue.submit_many([Item("x", b""), Item("z", b"")], asker="b")
    assert (await queue.depth()).total == 2
    assert await queue.find(["z"]) == [None]
    [again] = await queue.submit_many([Item("x", b"")], asker="b")  # adds nothing, so it is let in
    assert not again.created
    await queue.complete(await claim_one(queue), b"")
    assert (await queue.submit("z", b"", asker="b")).created


async def test_ids_carry_their_time() -> None:
    now = time.time()
    assert JobId.created(JobId.new(now)) == pytest.approx(now, abs=0.002)
    for wrong in ("", "x", "0197", "0197a3b2c4d", "0197a3b2c4d-", "zzzzzzzzzzz-1", "0197a3b2c4d-1\n"):
        with pytest.raises(ValueError, match="is not a job id"):
            JobId.created(wrong)


async def test_job_ids_are_of_the_servers_clock(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"", asker="a")).job
    assert abs(JobId.created(job) - time.time()) < 60


# Leases --------------------------------------------------------------------------------------------------------------


async def test_a_silent_workers_item_is_taken_over(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=0.2))
    await queue.submit("k", b"work", asker="a")
    lost = await claim_one(queue, "w1")
    taken = await claim_lapsed(queue, "w2")
    assert (taken.job, taken.payload, taken.lapses) == (lost.job, b"work", 1)
    assert await queue.renew([lost]) == {lost}
    assert await queue.renew([taken]) == set()


async def test_renewal_keeps_a_lease_and_never_steals_one_back(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    mine = await claim_one(queue, "w1")
    impatient = other(queue, lease_s=0.05)
    await queue.lapse(mine)
    assert await queue.renew([mine]) == set()  # still its own, and renewed: no longer lapsed
    assert await other(queue, lease_s=60.0).claim("w2", 1) == []
    taken = await claim_lapsed(impatient, "w2")
    assert await queue.renew([mine]) == {mine}
    assert await queue.renew([mine]) == {mine}
    assert await queue.renew([taken]) == set()


async def test_first_result_wins_whoever_holds_the_lease(queue: JobQueue) -> None:
    ticket = await queue.submit("k", b"work", asker="a")
    slow = await claim_one(queue, "w1")
    await queue.lapse(slow)
    [fast] = await other(queue).claim("w2", 1)
    assert await queue.complete(slow, b"from the slow one")
    assert not await queue.complete(fast, b"from the fast one")
    assert await queue.renew([fast]) == {fast}
    [outcome] = await queue.result([ticket.job])
    assert outcome is not None
    assert outcome.result == b"from the slow one"
    assert await queue.depth() == Depth(0, 0)
    assert (await queue.stats())["late"] == 1


async def test_complete_sent_again_reads_as_the_first_time(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    lease = await claim_one(queue)
    assert await queue.complete(lease, b"result")
    assert await queue.complete(lease, b"result")
    assert (await queue.stats())["done"] == 1


async def test_side_writes_come_with_the_winning_result_only(queue: JobQueue) -> None:
    vote, taken = f"{queue.namespace}:vote", f"{queue.namespace}:taken"
    await queue.redis.set(taken, b"there before", ex=60)
    await queue.submit("k", b"work", asker="a")
    slow = await claim_one(queue, "w1")
    await queue.lapse(slow)
    [fast] = await other(queue).claim("w2", 1)
    assert await queue.complete(fast, b"r", [SideWrite(vote, b"first", 60.0), SideWrite(taken, b"first", 60.0)])
    assert not await queue.complete(slow, b"r", [SideWrite(vote, b"late", 60.0)])
    assert await queue.redis.get(vote) == b"first"
    assert await queue.redis.get(taken) == b"there before"
    assert 0 < await queue.redis.pttl(vote) <= 60_000


async def test_entries_of_a_lost_reply_are_handed_over_again(queue: JobQueue) -> None:
    await queue.submit_many([Item(k, b"") for k in "xyz"], asker="a")
    [known] = await queue.claim("w1", 1, held=[])
    await queue.claim("w1", 1, held=[known])  # its reply is lost
    again = await queue.claim("w1", 5, held=[known])
    assert [(lease.key, lease.lapses) for lease in again] == [("y", 0), ("z", 0)]
    assert await queue.claim("w1", 5, held=[known, *again]) == []


# Failures and lapses -------------------------------------------------------------------------------------------------


async def test_the_third_failure_is_the_last(queue: JobQueue) -> None:
    ticket = await queue.submit("k", b"work", asker="a")
    for failures in range(3):
        lease = await claim_one(queue)
        assert lease.failures == failures
        state = await queue.fail(lease, f"failure {failures}".encode())
        assert state == ("dead" if failures == 2 else "queued")
    assert await queue.claim("w1", 1) == []
    [outcome] = await queue.result([ticket.job])
    assert outcome is not None
    assert (outcome.state, outcome.reason, outcome.error, outcome.failures) == ("dead", "failed", b"failure 2", 3)
    [dead] = await queue.dead()
    assert (dead.job, dead.key, dead.reason, dead.error) == (ticket.job, "k", "failed", b"failure 2")
    assert (dead.failures, dead.lapses, dead.payload) == (3, 0, b"work")


async def test_a_final_failure_is_dead_at_once(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    assert await queue.fail(await claim_one(queue), b"too long", final=True) == "dead"
    [dead] = await queue.dead()
    assert (dead.reason, dead.failures) == ("rejected", 1)


async def test_a_retry_of_a_dead_job_is_clean(queue: JobQueue) -> None:
    first = await queue.submit("k", b"work", asker="a")
    await queue.fail(await claim_one(queue), b"no", final=True)
    second = await queue.submit("k", b"work", asker="a")
    assert second.created
    assert second.job != first.job
    lease = await claim_one(queue)
    assert (lease.job, lease.failures) == (second.job, 0)
    await queue.complete(lease, b"yes")
    outcomes = await queue.result([first.job, second.job])
    assert [o and o.state for o in outcomes] == ["dead", "done"]


async def test_infrastructure_faults_and_releases_are_not_counted(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    for _ in range(10):
        assert await queue.fail(await claim_one(queue), b"no disk", infrastructure=True) == "queued"
        assert await queue.release(await claim_one(queue)) == "queued"
    lease = await claim_one(queue)
    assert (lease.failures, lease.lapses, lease.payload) == (0, 0, b"work")
    assert await queue.dead() == []


async def test_lapses_have_a_limit_of_their_own(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(max_lapses=3, max_failures=1))
    ticket = await queue.submit("k", b"work", asker="a")
    for lapses in range(3):
        [lease] = await other(queue, max_lapses=3).claim(f"w{lapses}", 1)
        assert lease.lapses == lapses
        await queue.lapse(lease)
    assert await other(queue, max_lapses=3).claim("w9", 1) == []
    [outcome] = await queue.result([ticket.job])
    assert outcome is not None
    assert (outcome.state, outcome.reason, outcome.lapses, outcome.failures) == ("dead", "lapsed", 3, 0)
    assert b"vanished" in (outcome.error or b"")
    assert (await queue.depth()).total == 0


async def test_an_item_that_ends_its_workers_does_not_take_its_neighbours_along(queue: JobQueue) -> None:
    """Items that lapsed together are not handed out together for ever: a worker gets one suspect at a time."""
    await queue.submit_many([Item(k, b"") for k in "pxy"], asker="a")
    for consumer in ("w1", "w2"):
        leases = await other(queue).claim(consumer, 3)
        assert [lease.key for lease in leases] == ["p", "x", "y"]
        for lease in leases:
            await queue.lapse(lease)
    [first] = await other(queue).claim("w3", 3, held=[])
    assert await other(queue).claim("w3", 3, held=[first]) == []
    [second] = await other(queue).claim("w4", 3, held=[])
    [third] = await other(queue).claim("w5", 3, held=[])
    assert [first.key, second.key, third.key] == ["p", "x", "y"]


async def test_only_the_owner_can_fail_or_release(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    old = await claim_one(queue, "w1")
    await queue.lapse(old)
    [new] = await other(queue).claim("w2", 1)
    assert await queue.fail(old, b"late") is None
    assert await queue.release(old) is None
    assert await queue.lapse(old) is None
    assert await queue.renew([new]) == set()
    assert await queue.fail(new, b"once") == "queued"
    assert await queue.fail(new, b"once, sent again") is None
    assert (await claim_one(queue)).failures == 1


# Cancelling ----------------------------------------------------------------------------------------------------------


async def test_work_stops_with_the_last_asker(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"work", asker="a")).job
    await queue.submit("k", b"work", asker="b")
    assert await queue.cancel([job], asker="a") == ["queued"]
    assert await queue.cancel([job], asker="a") == ["queued"]  # again: still only one asker less
    assert await queue.cancel([job], asker="stranger") == ["queued"]
    assert await queue.cancel([job], asker="b") == ["cancelled"]
    assert await queue.claim("w1", 1) == []
    assert (await queue.depth()).total == 0
    assert (await queue.submit("k", b"work", asker="c")).created


async def test_a_running_job_that_is_cancelled_is_told_at_renewal(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"work", asker="a")).job
    lease = await claim_one(queue)
    assert await queue.cancel([job], asker="a") == ["cancelled"]
    assert await queue.renew([lease]) == {lease}
    assert not await queue.complete(lease, b"for nobody")
    [outcome] = await queue.result([job])
    assert outcome is not None
    assert (outcome.state, outcome.result) == ("cancelled", None)


async def test_cancelling_what_has_ended_changes_nothing(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"work", asker="a")).job
    await queue.complete(await claim_one(queue), b"result")
    assert await queue.cancel([job, "never"], asker="a") == ["done", "gone"]
    assert (await queue.submit("k", b"work", asker="a")).result == b"result"


# Lifetimes -----------------------------------------------------------------------------------------------------------


async def test_an_item_that_nobody_asks_for_any_more_expires(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace)
    job = (await queue.submit("k", b"work", asker="a", ttl_s=0.05)).job
    await queue.submit("later", b"work", asker="a")
    outcome = (await queue.wait([job], timeout_s=DEADLINE_S))[job]
    assert outcome.state == "gone"
    assert [lease.key for lease in await queue.claim("w1", 5)] == ["later"]
    assert (await queue.depth()).total == 1
    await queue.aclose()


async def test_a_running_item_does_not_expire_while_it_is_renewed(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=60.0))
    job = (await queue.submit("k", b"work", asker="a", ttl_s=0.5)).job
    lease = await claim_one(queue)
    assert await queue.redis.pttl(f"{redis_namespace}:job:{job}") > 60_000
    await queue.redis.pexpire(f"{redis_namespace}:job:{job}", 5000)
    await queue.renew([lease])
    assert await queue.redis.pttl(f"{redis_namespace}:job:{job}") > 60_000


async def test_a_result_outlives_the_longest_asker(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(ttl_s=10.0, lease_s=1.0))
    job = (await queue.submit("k", b"work", asker="a")).job
    await queue.submit("k", b"work", asker="b", ttl_s=1000.0)
    for key in (f"job:{job}", "key:k"):
        await queue.redis.pexpire(f"{redis_namespace}:{key}", 60_000)  # as if most of it were over by now
    await queue.complete(await claim_one(queue), b"result")
    for key in (f"job:{job}", "key:k"):
        assert 900_000 < await queue.redis.pttl(f"{redis_namespace}:{key}") <= 1_000_000


async def test_silent_consumers_that_hold_nothing_are_forgotten(redis: Redis, redis_namespace: str) -> None:
    queue = JobQueue(redis, redis_namespace, QueueSettings(consumer_ttl_s=0.001))
    await queue.submit_many([Item("k", b""), Item("l", b"")], asker="a")
    lease = await claim_one(queue, "holder")
    await queue.complete(await claim_one(queue, "idle"), b"")
    removed: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while "idle" not in removed:
            removed += await queue.sweep()
    assert removed == ["idle"]
    assert not await queue.leave("holder")
    await queue.complete(lease, b"")
    assert await queue.leave("holder")
    assert await redis.xinfo_consumers(queue.stream, "workers") == []


# Broken Redis content ------------------------------------------------------------------------------------------------


async def test_a_lost_group_is_made_again_from_the_start(queue: JobQueue) -> None:
    await queue.submit_many([Item(k, b"") for k in "xy"], asker="a")
    lease = await claim_one(queue)
    await queue.redis.xgroup_destroy(queue.stream, "workers")
    assert await queue.renew([lease]) == {lease}
    assert await queue.fail(lease, b"") is None
    assert (await queue.depth()).total == 2
    assert [again.key for again in await queue.claim("w2", 5)] == ["x", "y"]


async def test_entries_deleted_by_hand_while_pending_do_not_stay(redis: Redis, redis_namespace: str) -> None:
    """Redis 6.2 keeps them in the pending list; 7 drops them when they are claimed."""
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=0.05))
    job = (await queue.submit("k", b"work", asker="a")).job
    lease = await claim_one(queue)
    await queue.redis.xdel(queue.stream, lease.entry)
    async with asyncio.timeout(DEADLINE_S):
        while (await queue.depth()).pending:
            assert await queue.claim("w2", 1) == []
    [outcome] = await queue.result([job])
    assert outcome is not None
    assert outcome.state == "gone"
    assert (await queue.submit("k", b"work", asker="a")).created


async def test_a_flushed_redis_is_survived_by_all_calls(queue: JobQueue) -> None:
    job = (await queue.submit("k", b"work", asker="a")).job
    lease = await claim_one(queue)
    keys = [key async for key in queue.redis.scan_iter(f"{queue.namespace}*")]
    await queue.redis.delete(*keys)  # this queue's share of FLUSHALL
    assert await queue.renew([lease]) == {lease}
    assert not await queue.complete(lease, b"result")
    assert await queue.fail(lease, b"") is None
    assert await queue.cancel([job], asker="a") == ["gone"]
    assert await queue.depth() == Depth(0, 0)
    assert await queue.sweep() == []
    assert not await queue.leave("w1")
    assert await queue.claim("w1", 1) == []
    again = await queue.submit("k", b"work", asker="a")
    assert again.created
    assert (await claim_one(queue)).job == again.job


async def test_scripts_that_the_server_forgot_are_sent_again(queue: JobQueue) -> None:
    await queue.submit("k", b"work", asker="a")
    await queue.redis.script_flush()
    await queue.complete(await claim_one(queue), b"result")


async def test_a_server_that_forgets_its_scripts_all_the_time_is_no_trouble(queue: JobQueue) -> None:
    """Restarts may fall between any two commands, so no step may need the server to remember the one before."""
    flushing = True

    async def flush() -> None:
        while flushing:
            await queue.redis.script_flush()

    flusher = asyncio.create_task(flush())
    for i in range(100):
        await queue.submit(f"k{i}", b"work", asker="a")
        assert await queue.complete(await claim_one(queue), b"result")
    flushing = False
    await flusher


@pytest.mark.parametrize("wrong", [{"lease_s": 0.0}, {"max_failures": 0}, {"ttl_s": -1.0}, {"max_depth": 0}])
def test_settings_name_the_wrong_field(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=f"{name} is {wrong[name]}"):
        QueueSettings(**wrong)  # type: ignore[arg-type]
