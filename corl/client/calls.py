"""The calls of the judge's API, each as steps for a transport (`corl.client.exchange`)."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from corl.client.checks import (
    HighWater,
    OlderWeights,
    check_dropped,
    check_job,
    check_lease,
    check_published,
    check_rollouts,
    check_scores,
)
from corl.client.exchange import Answer, Judge, Pause, Request, Steps, exchange
from corl.client.retry import Backoff, Deadline
from corl.errors import JobCancelled, JobFailed, JobGone, JobUnknown, JudgeInvalid, JudgeStale, JudgeUnavailable
from corl.wire import (
    JobRequest,
    JobStatus,
    ModelInfo,
    RolloutsRequest,
    RolloutsResponse,
    ScoresRequest,
    ScoresResponse,
    TrainerLease,
    TrainerUpdate,
    VotesDropped,
    WeightsStatus,
    WeightsTag,
    WeightsUpdate,
)

__all__ = ["Calls"]

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

SHORT_ATTEMPT_S: Final = 30.0
"""Longest wait for the answer of a route that does no work, on top of what it was asked to wait."""
LONG_POLL_S: Final = 30.0
"""How long one look at a job waits for its end; below the idle limit of common proxies (60 s)."""
REMEMBERED_JOBS: Final = 4096


class Calls:
    """One judge's API. Thread-safe; holds the newest weights seen and the requests of the jobs that were submitted."""

    def __init__(self, judge: Judge, timeout: float, backoff: Backoff) -> None:
        self.judge = judge
        self.timeout = timeout
        self.backoff = backoff
        self._served = HighWater()
        self._desired = HighWater()
        self._jobs: OrderedDict[str, tuple[JobRequest, WeightsTag | None]] = OrderedDict()
        self._jobs_lock = Lock()

    # Work that is waited for

    def rollouts(self, request: RolloutsRequest, deadline_s: float | None) -> Steps[RolloutsResponse]:
        deadline = self._deadline(deadline_s)
        # A judge should not work on for a caller that has left.
        request = request.model_copy(update={"deadline_s": min(request.deadline_s, deadline.seconds)})
        floor = self._served.now()

        def check(response: RolloutsResponse) -> None:
            check_rollouts(request, response)
            self._served.check(response.weights, floor)

        sent = _post("/v1/rollouts", request)
        return (yield from self._exchange(sent, self._read(sent, RolloutsResponse, check), deadline))

    def scores(self, request: ScoresRequest, deadline_s: float | None) -> Steps[ScoresResponse]:
        floor = self._served.now()

        def check(response: ScoresResponse) -> None:
            check_scores(request, response)
            self._served.check(response.weights, floor)

        sent = _post("/v1/scores", request, lagging=True)
        return (yield from self._exchange(sent, self._read(sent, ScoresResponse, check), self._deadline(deadline_s)))

    # Jobs

    def submit(self, request: JobRequest, idempotency_key: str | None, deadline_s: float | None) -> Steps[JobStatus]:
        name = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        if not (0 < len(name) <= 255 and name.isascii() and name.isprintable()):
            raise ValueError(f"idempotency_key {name[:80]!r}: expected 1 to 255 printable ASCII characters")
        floor = self._served.now()
        sent = _post("/v1/jobs", request, headers={"idempotency-key": name})
        read = self._read(sent, JobStatus, lambda status: check_job(None, request, status))
        status = yield from self._exchange(sent, read, self._deadline(deadline_s))
        with self._jobs_lock:
            self._jobs[status.id] = (request, floor)
            while len(self._jobs) > REMEMBERED_JOBS:
                self._jobs.popitem(last=False)
        return status

    def job(self, job_id: str, wait_s: float, deadline_s: float | None) -> Steps[JobStatus]:
        return (yield from self._look(job_id, wait_s, self._deadline(deadline_s, at_least=wait_s + SHORT_ATTEMPT_S)))

    def result(self, job_id: str, deadline_s: float | None) -> Steps[RolloutsResponse | ScoresResponse]:
        return (yield from self._await(job_id, self._deadline(deadline_s)))

    def submit_and_wait(
        self, request: JobRequest, idempotency_key: str | None, deadline_s: float | None
    ) -> Steps[RolloutsResponse | ScoresResponse]:
        deadline = self._deadline(deadline_s)
        name = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        losses = 0
        while True:
            status = yield from self.submit(request, name, max(deadline.remaining(), 1e-3))
            try:
                return (yield from self._await(status.id, deadline))
            except (JobUnknown, JobGone):
                # The judge's store was lost or expired under the job; the same key makes the same job anew.
                losses += 1
                pause = self.backoff.pause(losses, deadline.remaining())
                if pause is None:
                    raise
                yield Pause(pause)

    def cancel(self, job_id: str, deadline_s: float | None) -> Steps[None]:
        sent = Request("DELETE", _job_path(job_id), attempt_s=SHORT_ATTEMPT_S, job=True)
        yield from self._exchange(sent, lambda _: None, self._deadline(deadline_s))

    def _look(self, job_id: str, wait_s: float, deadline: Deadline) -> Steps[JobStatus]:
        wait_s = max(0.0, min(wait_s, deadline.remaining()))
        sent = Request(
            "GET",
            _job_path(job_id),
            params={"wait_s": f"{wait_s:.3f}"},
            attempt_s=wait_s + SHORT_ATTEMPT_S,
            job=True,
        )
        with self._jobs_lock:
            request, floor = self._jobs.get(job_id, (None, None))

        def check(status: JobStatus) -> None:
            check_job(job_id, request, status)
            if status.result is not None:
                # Scores may come from a replica that lags behind, and a finished job cannot be asked again.
                self._served.check(status.result.weights, floor if status.kind == "rollouts" else None)

        return (yield from self._exchange(sent, self._read(sent, JobStatus, check), deadline))

    def _await(self, job_id: str, deadline: Deadline) -> Steps[RolloutsResponse | ScoresResponse]:
        looks = 0
        last: str | None = None
        while True:
            try:
                status = yield from self._look(job_id, LONG_POLL_S, deadline)
            except JudgeUnavailable as unavailable:
                if last is None:
                    raise
                # The deadline cut this look short; what the judge said of the job before tells more.
                raise self._unfinished(job_id, last, looks, deadline) from unavailable
            looks += 1
            route = f"GET {_job_path(job_id)}"
            if status.status == "done":
                assert status.result is not None
                return status.result
            if status.status in ("failed", "cancelled"):
                kind = JobFailed if status.status == "failed" else JobCancelled
                why = status.error and (status.error.detail or status.error.title)
                text = self.judge.redact(f"job {job_id} {status.status}{f': {why}' if why else ''}")
                raise kind(text, url=self.judge.url, route=route, job_id=job_id, problem=status.error)
            last = f"job {job_id} is {status.status}, {status.done} of {status.total} items done"
            pause = self.backoff.pause(0, deadline.remaining())
            if pause is None:
                raise self._unfinished(job_id, last, looks, deadline)
            yield Pause(pause)

    def _unfinished(self, job_id: str, last: str, looks: int, deadline: Deadline) -> JudgeUnavailable:
        return JudgeUnavailable(
            f"no result in a deadline of {deadline.seconds:g} s; last: {last}",
            url=self.judge.url,
            route=f"GET {_job_path(job_id)}",
            deadline_s=deadline.seconds,
            attempts=looks,
            last=last,
        )

    # Weights, lease, model

    def put_weights(self, update: WeightsUpdate, deadline_s: float | None) -> Steps[WeightsStatus]:
        def check(status: WeightsStatus) -> None:
            check_published(update, status)
            if status.desired is not None:
                self._desired.check(status.desired, None)

        sent = Request("PUT", "/v1/weights", body=_body(update), attempt_s=SHORT_ATTEMPT_S)
        return (yield from self._exchange(sent, self._read(sent, WeightsStatus, check), self._deadline(deadline_s)))

    def weights(self, version: int | None, wait_s: float, deadline_s: float | None) -> Steps[WeightsStatus]:
        floor = self._desired.now()

        def check(status: WeightsStatus) -> None:
            # What is wanted goes back only when it could not be loaded, and then a replica says so.
            if any(replica.state == "failed" or replica.reload_error for replica in status.replicas):
                self._desired.reset(status.desired)
            elif status.desired is not None:
                self._desired.check(status.desired, floor)

        params = {"wait_s": f"{wait_s:.3f}"} | ({} if version is None else {"version": str(version)})
        sent = Request("GET", "/v1/weights", params=params, attempt_s=wait_s + SHORT_ATTEMPT_S, lagging=True)
        deadline = self._deadline(deadline_s, at_least=wait_s + SHORT_ATTEMPT_S)
        return (yield from self._exchange(sent, self._read(sent, WeightsStatus, check), deadline))

    def put_trainer(self, update: TrainerUpdate, deadline_s: float | None) -> Steps[TrainerLease]:
        sent = Request("PUT", "/v1/trainer", body=_body(update), attempt_s=SHORT_ATTEMPT_S)
        read = self._read(sent, TrainerLease, lambda lease: check_lease(update, lease))
        return (yield from self._exchange(sent, read, self._deadline(deadline_s)))

    def drop_votes(self, run: str, after: int, deadline_s: float | None) -> Steps[VotesDropped]:
        params = {"run": run, "after": str(after)}
        sent = Request("DELETE", "/v1/votes", params=params, attempt_s=SHORT_ATTEMPT_S)
        read = self._read(sent, VotesDropped, lambda dropped: check_dropped(run, after, dropped))
        return (yield from self._exchange(sent, read, self._deadline(deadline_s)))

    def model(self, deadline_s: float | None) -> Steps[ModelInfo]:
        return (yield from self._model(self._deadline(deadline_s)))

    def wait_ready(self, deadline_s: float | None) -> Steps[ModelInfo]:
        deadline = self._deadline(deadline_s)
        eager = Backoff(min(self.backoff.base_s, 0.25), min(self.backoff.cap_s, 2.0), self.backoff.doubts)
        probe = Request("GET", "/readyz", attempt_s=10.0, awaited=True)
        yield from exchange(self.judge, probe, lambda _: None, deadline=deadline, backoff=eager)
        return (yield from self._model(deadline))

    def _model(self, deadline: Deadline) -> Steps[ModelInfo]:
        sent = Request("GET", "/v1/model", attempt_s=SHORT_ATTEMPT_S)
        return (yield from self._exchange(sent, self._read(sent, ModelInfo, lambda _: None), deadline))

    # What all calls share

    def _deadline(self, deadline_s: float | None, *, at_least: float = 0.0) -> Deadline:
        return Deadline(max(self.timeout, at_least) if deadline_s is None else deadline_s)

    def _exchange(self, request: Request, read: Callable[[Answer], T], deadline: Deadline) -> Steps[T]:
        return (yield from exchange(self.judge, request, read, deadline=deadline, backoff=self.backoff))

    def _read(self, request: Request, model: type[M], check: Callable[[M], None]) -> Callable[[Answer], M]:
        """Parse an answer and hold it against its request; what does not fit is a JudgeInvalid or JudgeStale."""
        url, route = self.judge.url, request.route

        def read(answer: Answer) -> M:
            try:
                value = model.model_validate_json(answer.body)
                check(value)
            except ValidationError as error:
                raise JudgeInvalid(f"answered {self._malformed(answer, error)}", url=url, route=route) from None
            except OlderWeights as error:
                raise JudgeStale(str(error), got=error.got, seen=error.seen, url=url, route=route) from None
            except ValueError as error:
                text = self.judge.redact(f"answered {answer.status}, {error}")
                raise JudgeInvalid(text, url=url, route=route) from None
            return value

        return read

    def _malformed(self, answer: Answer, error: ValidationError) -> str:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        first = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in found[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        kind = answer.headers.get("content-type", "no content type")
        text = f"{answer.status} with {len(answer.body)} bytes of {kind} that do not fit: {first}{more}"
        return self.judge.redact(text)


def _body(model: BaseModel) -> bytes:
    try:
        return model.model_dump_json().encode("utf-8")
    except (PydanticSerializationError, UnicodeEncodeError):
        # Half a surrogate pair, which a model's text may hold, has no UTF-8; it goes as U+FFFD.
        text = json.dumps(model.model_dump(mode="python"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _post(path: str, model: BaseModel, *, headers: dict[str, str] | None = None, lagging: bool = False) -> Request:
    return Request("POST", path, body=_body(model), headers=headers or {}, lagging=lagging)


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
