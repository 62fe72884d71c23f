"""Records of asynchronous requests (`POST /v1/jobs`): what was asked, under which idempotency key, and its status.

A record is a request of many items. The items are jobs of a `JobQueue`, submitted with the record's id as asker; their
progress is read there. Records expire by retention, and with them their idempotency keys.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from redis.asyncio import Redis

from corl_judge.jobs.scripts import LUA, Script
from corl_judge.jobs.types import JobId

__all__ = ["IdempotencyConflict", "JobRecord", "JobRecords", "RecordStatus"]

RecordStatus = Literal["queued", "running", "done", "failed", "cancelled"]


class IdempotencyConflict(Exception):
    """The idempotency key was used with another body (409)."""

    def __init__(self, idempotency_key: str, job: str) -> None:
        super().__init__(
            f"Idempotency-Key {idempotency_key!r} was used with another body, for job {job}: use a new key"
        )
        self.job = job


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`queue` and `keys` say where its items are; `created` is in seconds since the epoch."""

    id: str
    kind: str
    request: bytes
    queue: str
    keys: tuple[str, ...]
    status: RecordStatus
    created: float
    error: bytes | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("done", "failed", "cancelled")


class JobRecords:
    """The records of one member. `retention_s`: how long one is kept after it was created, and again after it ended."""

    def __init__(self, redis: Redis, namespace: str, *, retention_s: float = 86_400.0) -> None:
        self._redis = redis
        self._namespace = namespace
        self.retention_s = retention_s
        self._create = Script(redis, (LUA / "records" / "create.lua").read_text("utf-8"))
        self._status = Script(redis, (LUA / "records" / "status.lua").read_text("utf-8"))

    def _name(self, job: str) -> str:
        return f"{self._namespace}:record:{job}"

    @property
    def _index(self) -> str:
        return f"{self._namespace}:records"

    async def create(
        self,
        *,
        kind: str,
        request: bytes,
        queue: str,
        keys: Sequence[str],
        idempotency_key: str | None = None,
        body: bytes | None = None,
    ) -> tuple[JobRecord, bool]:
        """The record of this request and whether it is new; with an idempotency key, that key's record.

        `body` is what must be the same under one key (`request` by default). Raises IdempotencyConflict.
        """
        now = time.time()
        record = JobRecord(JobId.new(now), kind, request, queue, tuple(keys), "queued", now)
        key = f"{self._namespace}:idempotency:{idempotency_key}" if idempotency_key is not None else ""
        digest = hashlib.sha256(request if body is None else body).hexdigest()
        verdict, job = await self._create(
            keys=[self._name(record.id), self._index, *([key] if key else [])],
            args=[
                record.id,
                digest,
                int(self.retention_s * 1000),
                repr(now),
                kind,
                request,
                queue,
                "\n".join(keys),
                f"{self._namespace}:record:",
            ],
        )
        if verdict == b"conflict":
            raise IdempotencyConflict(cast("str", idempotency_key), job.decode())
        if job.decode() == record.id:
            return record, True
        known = await self.get(job.decode())
        return (known or replace(record, id=job.decode())), False

    async def get(self, job: str) -> JobRecord | None:
        fields = cast("Any", await self._redis.hgetall(self._name(job)))
        return _record(job, fields) if fields else None

    def missing(self, job: str, *, now: float | None = None) -> Literal["gone", "unknown"]:
        """Why `get` found nothing: older than the retention (410), or never a job (404)."""
        try:
            created = JobId.created(job)
        except ValueError:
            return "unknown"
        return "gone" if (time.time() if now is None else now) - created >= self.retention_s else "unknown"

    async def set_status(self, job: str, status: RecordStatus, *, error: bytes | None = None) -> bool:
        """False if the record is no more or has ended: an end is final."""
        args: list[str | bytes | int] = [status, int(self.retention_s * 1000)]
        return bool(await self._status(keys=[self._name(job)], args=[*args, *([error] if error is not None else [])]))

    async def list(self, *, count: int = 100) -> list[JobRecord]:
        """The newest first; expired ones are forgotten on the way."""
        oldest = time.time() - 2 * self.retention_s
        await self._redis.zremrangebyscore(self._index, "-inf", f"({oldest}")
        ids = [job.decode() for job in cast("Any", await self._redis.zrevrange(self._index, 0, -1))]
        records: list[JobRecord] = []
        for start in range(0, len(ids), 100):
            if len(records) >= count:
                break
            chunk = ids[start : start + 100]
            pipe = self._redis.pipeline(transaction=False)
            for job in chunk:
                pipe.hgetall(self._name(job))
            rows = await pipe.execute()
            records += [_record(job, fields) for job, fields in zip(chunk, rows, strict=True) if fields]
        return records[:count]


def _record(job: str, fields: dict[bytes, bytes]) -> JobRecord:
    keys = fields[b"keys"].decode()
    return JobRecord(
        id=job,
        kind=fields[b"kind"].decode(),
        request=fields[b"request"],
        queue=fields[b"queue"].decode(),
        keys=tuple(keys.split("\n")) if keys else (),
        status=cast("RecordStatus", fields[b"status"].decode()),
        created=float(fields[b"created"]),
        error=fields.get(b"error"),
    )
