"""The client for threads."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self, TypeVar

import httpx

from corl.client.calls import Calls
from corl.client.exchange import Answer, Attempt, Fault, Pause, Steps
from corl.client.retry import Backoff
from corl.client.transport import Body, Connection, fault
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
    WeightsUpdate,
)

__all__ = ["JudgeClient"]

T = TypeVar("T")
LOOPBACK = {"all://localhost": None, "all://127.0.0.1": None, "all://[::1]": None}
"""Never through a proxy that the environment names."""


class JudgeClient:
    """A judge's API, for threads. See `corl.client` for what all calls have in common.

    Thread-safe: threads may share one client, and do well to, since it remembers the newest weights it has seen.
    `close` ends calls that are waiting to try again. Not to be used across a fork.

    Args:
        url: the judge's address, e.g. `http://127.0.0.1:8001`; a path in it is kept.
        api_key: sent as a bearer token.
        timeout: deadline in seconds of a call that gives none.
        backoff: how long to wait between attempts.
        max_response_bytes: an answer that is longer is a JudgeInvalid.
        transport: an httpx transport instead of the network, e.g. `httpx.WSGITransport`.

    Raises:
        ValueError: the address or the key is malformed.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 600.0,
        *,
        backoff: Backoff | None = None,
        max_response_bytes: int = 1 << 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection.to(url, api_key, max_response_bytes)
        self._calls = Calls(self._connection.judge, timeout, backoff or Backoff())
        self._closed = threading.Event()
        self._http = httpx.Client(
            auth=self._connection.auth,
            verify=self._connection.verify,
            transport=transport,
            mounts=None if transport else LOOPBACK,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    @property
    def url(self) -> str:
        """The judge's address, without credentials."""
        return self._connection.judge.url

    def rollouts(self, request: RolloutsRequest, *, deadline_s: float | None = None) -> RolloutsResponse:
        """Sample completions for problems; `POST /v1/rollouts`."""
        return self._carry_out(self._calls.rollouts(request, deadline_s))

    def scores(self, request: ScoresRequest, *, deadline_s: float | None = None) -> ScoresResponse:
        """Rewards for completions by this judge's votes; `POST /v1/scores`."""
        return self._carry_out(self._calls.scores(request, deadline_s))

    def submit(
        self, request: JobRequest, idempotency_key: str | None = None, *, deadline_s: float | None = None
    ) -> JobStatus:
        """Queue work; `POST /v1/jobs`. The same key and request are the same job, however often submitted."""
        return self._carry_out(self._calls.submit(request, idempotency_key, deadline_s))

    def job(self, job_id: str, wait_s: float = 0.0, *, deadline_s: float | None = None) -> JobStatus:
        """How a job stands; waits up to `wait_s` for its end. Raises JobUnknown or JobGone too."""
        return self._carry_out(self._calls.job(job_id, wait_s, deadline_s))

    def result(self, job_id: str, deadline_s: float | None = None) -> RolloutsResponse | ScoresResponse:
        """Wait for a job's end. Raises JobFailed, JobCancelled, JobUnknown or JobGone too."""
        return self._carry_out(self._calls.result(job_id, deadline_s))

    def submit_and_wait(
        self, request: JobRequest, idempotency_key: str | None = None, *, deadline_s: float | None = None
    ) -> RolloutsResponse | ScoresResponse:
        """`submit`, then `result`; submits anew when the judge lost the job. Raises JobFailed or JobCancelled too."""
        return self._carry_out(self._calls.submit_and_wait(request, idempotency_key, deadline_s))

    def cancel(self, job_id: str, *, deadline_s: float | None = None) -> None:
        """Withdraw from a job; its work stops when nobody else asked for it."""
        self._carry_out(self._calls.cancel(job_id, deadline_s))

    def put_weights(self, update: WeightsUpdate, *, deadline_s: float | None = None) -> WeightsStatus:
        """Ask every replica to load published weights; returns once they are accepted, not loaded."""
        return self._carry_out(self._calls.put_weights(update, deadline_s))

    def weights(
        self, version: int | None = None, wait_s: float = 0.0, *, deadline_s: float | None = None
    ) -> WeightsStatus:
        """Which weights are wanted and which are loaded; waits up to `wait_s` for `version`."""
        return self._carry_out(self._calls.weights(version, wait_s, deadline_s))

    def put_trainer(self, update: TrainerUpdate, *, deadline_s: float | None = None) -> TrainerLease:
        """Take or renew the trainer's lease. Raises JudgeConflict once a newer trainer holds it."""
        return self._carry_out(self._calls.put_trainer(update, deadline_s))

    def drop_votes(self, run: str, after: int, *, deadline_s: float | None = None) -> VotesDropped:
        """Forget the votes of a run's steps later than `after`, which the cohort will do again."""
        return self._carry_out(self._calls.drop_votes(run, after, deadline_s))

    def model(self, *, deadline_s: float | None = None) -> ModelInfo:
        """What the judge serves, and its limits."""
        return self._carry_out(self._calls.model(deadline_s))

    def wait_ready(self, deadline_s: float | None = None) -> ModelInfo:
        """Wait until the judge is up and accepts work; then `model`, so that a wrong key fails here."""
        return self._carry_out(self._calls.wait_ready(deadline_s))

    def close(self) -> None:
        self._closed.set()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _carry_out(self, steps: Steps[T]) -> T:
        reply: Answer | Fault | None = None
        try:
            while True:
                step = steps.send(reply)
                if self._closed.is_set():
                    raise RuntimeError(f"the client of judge {self.url} is closed")
                if isinstance(step, Pause):
                    self._closed.wait(step.seconds)
                    reply = None
                else:
                    reply = self._send(step)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _send(self, attempt: Attempt) -> Answer | Fault:
        end = time.monotonic() + attempt.timeout_s
        try:
            response = self._http.send(self._connection.request(self._http, attempt), stream=True)
            try:
                body = Body(response, end, self._connection.max_response_bytes)
                for chunk in response.iter_bytes():
                    if (failed := body.add(chunk)) is not None:
                        return failed
                return body.answer()
            finally:
                response.close()
        except httpx.HTTPError as error:
            return fault(error, attempt)
