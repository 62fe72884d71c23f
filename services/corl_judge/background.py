"""Requests done in the background (`/v1/jobs`): each is one item of a queue of its own, done by any replica.

So a request survives the replica that took it, is done once, and its result can be had from any replica. Its parts
(the problems to sample) are work items like those of any other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from corl.wire import ErrorBody, JobRequest, JobStatus, RolloutsRequest
from corl_judge.errors import Conflict, Gone, NotFound, Problem, TooBusy, UpstreamFailed
from corl_judge.jobs import IdempotencyConflict, JobQueue, JobRecord, JobRecords, Lease
from corl_judge.judge import Judge
from corl_judge.limits import check_rollouts, check_scores
from corl_judge.logs import bound
from corl_judge.packing import pack, unpack
from corl_judge.sampling import Asker
from corl_judge.settings import Settings
from corl_judge.tasks import end
from corl_judge.worker import Done, InfrastructureFault, decode_error

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["QUEUE", "Background"]

QUEUE = "requests"
CANCEL_LOOK_S = 1.0


class Background:
    def __init__(self, settings: Settings, redis: Redis, records: JobRecords, queue: JobQueue, judge: Judge) -> None:
        self._settings = settings
        self._redis: Any = redis
        self._records = records
        self._queue = queue
        self._judge = judge

    # What the routes call --------------------------------------------------------------------------------------------

    async def submit(self, job: JobRequest, idempotency_key: str | None) -> tuple[JobStatus, bool]:
        """The job and whether it is new. Raises Invalid, Conflict (the key was used for another body), TooBusy."""
        if isinstance(job.request, RolloutsRequest):
            check_rollouts(job.request, self._settings)
        else:
            check_scores(job.request, self._settings)
        body = job.model_dump_json().encode()
        try:
            record, created = await self._records.create(
                kind=job.kind, request=body, queue=QUEUE, keys=[uuid.uuid4().hex], idempotency_key=idempotency_key
            )
        except IdempotencyConflict as error:
            raise Conflict(str(error), kind="idempotency") from error
        if created:
            await self._submit(record)
        return await self._status(record), created

    async def status(self, job: str, wait_s: float) -> JobStatus:
        """Waits up to `wait_s` for the end. Raises NotFound or Gone."""
        record = await self._record(job)
        [queued] = await self._queue.find(record.keys)
        if queued is None and not record.ended:
            queued = await self._submit(record)  # the replica that took it ended too early, or Redis lost it
        if queued is not None and wait_s > 0 and record.status != "cancelled":
            await self._queue.wait([queued], timeout_s=wait_s)
            record = await self._record(job)
        return await self._status(record)

    async def cancel(self, job: str) -> JobStatus:
        """Withdraw the asker. What ended stays as it is. Raises NotFound or Gone."""
        record = await self._record(job)
        if await self._records.set_status(record.id, "cancelled"):
            [queued] = await self._queue.find(record.keys)
            if queued is not None:
                await self._queue.cancel([queued], asker=record.id)
        return await self._status(await self._record(job))

    async def _record(self, job: str) -> JobRecord:
        record = await self._records.get(job)
        if record is not None:
            return record
        if self._records.missing(job) == "gone":
            raise Gone(f"job {job!r} is older than the {self._records.retention_s:g} s for which jobs are kept")
        raise NotFound(f"there never was a job {job!r} here")

    async def _submit(self, record: JobRecord) -> str:
        """The queue's job for this record; submitted again if Redis lost it."""
        ticket = await self._queue.submit(
            record.keys[0], record.id.encode(), asker=record.id, ttl_s=self._records.retention_s
        )
        return ticket.job

    async def _status(self, record: JobRecord) -> JobStatus:
        request = JobRequest.model_validate_json(record.request).request
        total = len(request.problems if isinstance(request, RolloutsRequest) else request.items)
        [queued] = await self._queue.find(record.keys)
        outcome = None if queued is None else (await self._queue.result([queued]))[0]
        fields: dict[str, Any] = {"id": record.id, "kind": record.kind, "total": total, "created_at": record.created}
        if outcome is not None and outcome.result is not None:
            answer = unpack(outcome.result)
            if not isinstance(answer, ErrorBody):
                return JobStatus(status="done", done=total, result=answer, **fields)
            fields["error"] = answer
        elif outcome is not None and outcome.state == "dead":
            fields["error"] = UpstreamFailed(decode_error(outcome.error or b"")[1]).body()
        elif record.status in ("done", "failed") and (queued is None or outcome is not None):
            raise Gone(f"job {record.id!r} ended, but its result is no longer kept")
        status = record.status
        if record.status in ("queued", "running", "done", "failed"):
            # `done` is noted before the result is stored: until then it is running.
            status = "failed" if "error" in fields else "queued" if record.status == "queued" else "running"
        return JobStatus(status=status, done=await self._progress(record.id), **fields)

    # What a worker calls ---------------------------------------------------------------------------------------------

    async def __call__(self, queue: str, lease: Lease) -> Done:
        """A `worker.Handler`: do the whole request."""
        job = lease.payload.decode()
        record = await self._records.get(job)
        if record is None or record.status == "cancelled":
            return Done(pack(Gone(f"job {job!r} was withdrawn").body()))
        with bound(request_id=job):
            await self._records.set_status(job, "running")
            work = asyncio.create_task(self._do(record))
            try:
                while not work.done():
                    await asyncio.wait({work}, timeout=CANCEL_LOOK_S)
                    if not work.done() and await self._withdrawn(job):
                        return Done(pack(Gone(f"job {job!r} was withdrawn").body()))
                return await work
            finally:
                await end([work])

    async def _do(self, record: JobRecord) -> Done:
        request = JobRequest.model_validate_json(record.request).request
        reports: set[asyncio.Task[None]] = set()

        def report(done: int) -> None:
            task = asyncio.create_task(self._report(record.id, done))
            reports.add(task)
            task.add_done_callback(reports.discard)

        try:
            if isinstance(request, RolloutsRequest):
                asker = Asker(record.id, time.monotonic() + request.deadline_s, report)
                packed = pack(await self._judge.rollouts(request, asker))
            else:
                asker = Asker(record.id, time.monotonic() + self._settings.deadline_s, report)
                packed = pack(await self._judge.scores(request, asker))
        except TooBusy as error:
            raise InfrastructureFault(str(error)) from error
        except Problem as problem:
            body = problem.body()
            await self._records.set_status(record.id, "failed", error=body.model_dump_json().encode())
            return Done(pack(body))
        await asyncio.gather(*reports, return_exceptions=True)
        await self._records.set_status(record.id, "done")
        return Done(packed)

    async def _withdrawn(self, job: str) -> bool:
        with contextlib.suppress(RedisError, OSError):
            record = await self._records.get(job)
            return record is not None and record.status == "cancelled"
        return False

    # Progress --------------------------------------------------------------------------------------------------------

    async def _report(self, job: str, done: int) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(self._progress_key(job), done, ex=int(self._records.retention_s))

    async def _progress(self, job: str) -> int:
        return int(await self._redis.get(self._progress_key(job)) or 0)

    def _progress_key(self, job: str) -> str:
        return f"{self._settings.namespace}:progress:{job}"
