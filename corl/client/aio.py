"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

import httpx

from corl.client.calls import Calls
from corl.client.exchange import Answer, Attempt, Fault, Pause, Steps
from corl.client.retry import Backoff
from corl.client.sync import LOOPBACK
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

__all__ = ["AsyncJudgeClient"]

T = TypeVar("T")


class AsyncJudgeClient:
    """A judge's API, for asyncio. See `corl.client` for what all calls have in common.

    May be used from several event loops, one after another or in several threads: connections are kept per loop.
    `aclose` closes those of the running loop. Arguments and errors as for `JudgeClient`; `transport` is an async one,
    e.g. `httpx.ASGITransport`.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 600.0,
        *,
        backoff: Backoff | None = None,
        max_response_bytes: int = 1 << 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection.to(url, api_key, max_response_bytes)
        self._calls = Calls(self._connection.judge, timeout, backoff or Backoff())
        self._transport = transport
        self._closed = False
        self._http: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    @property
    def url(self) -> str:
        """The judge's address, without credentials."""
        return self._connection.judge.url

    async def rollouts(self, request: RolloutsRequest, *, deadline_s: float | None = None) -> RolloutsResponse:
        """Sample completions for problems; `POST /v1/rollouts`."""
        return await self._carry_out(self._calls.rollouts(request, deadline_s))

    async def scores(self, request: ScoresRequest, *, deadline_s: float | None = None) -> ScoresResponse:
        """Rewards for completions by this judge's votes; `POST /v1/scores`."""
        return await self._carry_out(self._calls.scores(request, deadline_s))

    async def submit(
        self, request: JobRequest, idempotency_key: str | None = None, *, deadline_s: float | None = None
    ) -> JobStatus:
        """Queue work; `POST /v1/jobs`. The same key and request are the same job, however often submitted."""
        return await self._carry_out(self._calls.submit(request, idempotency_key, deadline_s))

    async def job(self, job_id: str, wait_s: float = 0.0, *, deadline_s: float | None = None) -> JobStatus:
        """How a job stands; waits up to `wait_s` for its end. Raises JobUnknown or JobGone too."""
        return await self._carry_out(self._calls.job(job_id, wait_s, deadline_s))

    async def result(self, job_id: str, deadline_s: float | None = None) -> RolloutsResponse | ScoresResponse:
        """Wait for a job's end. Raises JobFailed, JobCancelled, JobUnknown or JobGone too."""
        return await self._carry_out(self._calls.result(job_id, deadline_s))

    async def submit_and_wait(
        self, request: JobRequest, idempotency_key: str | None = None, *, deadline_s: float | None = None
    ) -> RolloutsResponse | ScoresResponse:
        """`submit`, then `result`; submits anew when the judge lost the job. Raises JobFailed or JobCancelled too."""
        return await self._carry_out(self._calls.submit_and_wait(request, idempotency_key, deadline_s))

    async def cancel(self, job_id: str, *, deadline_s: float | None = None) -> None:
        """Withdraw from a job; its work stops when nobody else asked for it."""
        await self._carry_out(self._calls.cancel(job_id, deadline_s))

    async def put_weights(self, update: WeightsUpdate, *, deadline_s: float | None = None) -> WeightsStatus:
        """Ask every replica to load published weights; returns once they are accepted, not loaded."""
        return await self._carry_out(self._calls.put_weights(update, deadline_s))

    async def weights(
        self, version: int | None = None, wait_s: float = 0.0, *, deadline_s: float | None = None
    ) -> WeightsStatus:
        """Which weights are wanted and which are loaded; waits up to `wait_s` for `version`."""
        return await self._carry_out(self._calls.weights(version, wait_s, deadline_s))

    async def put_trainer(self, update: TrainerUpdate, *, deadline_s: float | None = None) -> TrainerLease:
        """Take or renew the trainer's lease. Raises JudgeConflict once a newer trainer holds it."""
        return await self._carry_out(self._calls.put_trainer(update, deadline_s))

    async def drop_votes(self, run: str, after: int, *, deadline_s: float | None = None) -> VotesDropped:
        """Forget the votes of a run's steps later than `after`, which the cohort will do again."""
        return await self._carry_out(self._calls.drop_votes(run, after, deadline_s))

    async def model(self, *, deadline_s: float | None = None) -> ModelInfo:
        """What the judge serves, and its limits."""
        return await self._carry_out(self._calls.model(deadline_s))

    async def wait_ready(self, deadline_s: float | None = None) -> ModelInfo:
        """Wait until the judge is up and accepts work; then `model`, so that a wrong key fails here."""
        return await self._carry_out(self._calls.wait_ready(deadline_s))

    async def aclose(self) -> None:
        self._closed = True
        http = self._http.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _carry_out(self, steps: Steps[T]) -> T:
        reply: Answer | Fault | None = None
        try:
            while True:
                step = steps.send(reply)
                if self._closed:
                    raise RuntimeError(f"the client of judge {self.url} is closed")
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    reply = None
                else:
                    reply = await self._send(step)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _send(self, attempt: Attempt) -> Answer | Fault:
        http = self._client()
        end = time.monotonic() + attempt.timeout_s
        try:
            async with asyncio.timeout(attempt.timeout_s):
                response = await http.send(self._connection.request(http, attempt), stream=True)
                try:
                    body = Body(response, end, self._connection.max_response_bytes)
                    async for chunk in response.aiter_bytes():
                        if (failed := body.add(chunk)) is not None:
                            return failed
                    return body.answer()
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            return fault(error, attempt)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        http = self._http.get(loop)
        if http is None:
            http = self._http[loop] = httpx.AsyncClient(
                auth=self._connection.auth,
                verify=self._connection.verify,
                transport=self._transport,
                mounts=None if self._transport else LOOPBACK,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            )
        return http
