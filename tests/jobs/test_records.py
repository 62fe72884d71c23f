"""Records of asynchronous requests."""

from __future__ import annotations

import asyncio
import time

import pytest
from corl_judge.jobs import IdempotencyConflict, JobId, JobRecord, JobRecords
from redis.asyncio import Redis


@pytest.fixture
def records(redis: Redis, redis_namespace: str) -> JobRecords:
    return JobRecords(redis, redis_namespace, retention_s=60.0)


async def create(records: JobRecords, request: bytes = b"{}", key: str | None = None) -> tuple[JobRecord, bool]:
    return await records.create(
        kind="rollouts", request=request, queue="requests", keys=["k0", "k1"], idempotency_key=key
    )


async def test_a_record_is_read_back_as_it_was_made(records: JobRecords) -> None:
    made, created = await create(records, b'{"n": "\xc3\xa9"}')
    assert created
    assert await records.get(made.id) == made
    assert (made.kind, made.queue, made.keys, made.status) == ("rollouts", "requests", ("k0", "k1"), "queued")
    assert JobId.created(made.id) == pytest.approx(made.created, abs=0.002)


async def test_one_idempotency_key_and_body_is_one_job(records: JobRecords) -> None:
    made = await asyncio.gather(*(create(records, b"body", "key") for _ in range(20)))
    assert len({record.id for record, _ in made}) == 1
    assert sum(created for _, created in made) == 1
    other, created = await create(records, b"body", "another key")
    assert created
    assert other.id != made[0][0].id
    assert (await create(records, b"body"))[1]
    assert (await create(records, b"body"))[1]


async def test_another_body_under_a_key_is_a_conflict(records: JobRecords) -> None:
    first, _ = await create(records, b"body", "key")
    with pytest.raises(IdempotencyConflict, match="'key' was used with another body") as refused:
        await create(records, b"another body", "key")
    assert refused.value.job == first.id


async def test_an_end_is_final(records: JobRecords) -> None:
    record, _ = await create(records)
    assert await records.set_status(record.id, "running")
    assert await records.set_status(record.id, "failed", error=b"why")
    for status in ("running", "done", "cancelled"):
        assert not await records.set_status(record.id, status)  # type: ignore[arg-type]
    ended = await records.get(record.id)
    assert ended is not None
    assert (ended.status, ended.error, ended.ended) == ("failed", b"why", True)
    assert not await records.set_status("0197a3b2c4d-never", "running")


async def test_the_newest_are_listed_first(records: JobRecords) -> None:
    made = [(await create(records))[0].id for _ in range(5)]
    assert [record.id for record in await records.list()] == made[::-1]
    assert [record.id for record in await records.list(count=2)] == made[:2:-1]


async def test_records_and_their_keys_expire(redis: Redis, redis_namespace: str) -> None:
    records = JobRecords(redis, redis_namespace, retention_s=0.1)
    first, _ = await create(records, b"body", "key")
    async with asyncio.timeout(30):
        while await records.get(first.id) is not None:
            pass
    assert records.missing(first.id, now=time.time() + 0.1) == "gone"
    assert await records.list() == []
    second, created = await create(records, b"another body", "key")
    assert created
    assert second.id != first.id


def test_what_is_missing_was_there_or_never_was(redis: Redis, redis_namespace: str) -> None:
    records = JobRecords(redis, redis_namespace, retention_s=60.0)
    now = time.time()
    assert records.missing(JobId.new(now - 61), now=now) == "gone"
    assert records.missing(JobId.new(now - 59), now=now) == "unknown"
    for name in ("", "x", "../../etc/passwd"):
        assert records.missing(name) == "unknown"
