"""One call without its transport: which requests are sent, how long is waited between them, what comes of the answers.

A call is a generator of steps. It yields an `Attempt` and is sent what came of it, an `Answer` or a `Fault`; or it
yields a `Pause` and is sent nothing; it returns the call's result or raises. The sync and the async client only carry
the steps out, so they cannot behave differently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal, TypeVar

from pydantic import ValidationError

from corl.client.retry import RETRIED_STATUSES, Backoff, Deadline, retry_after
from corl.errors import (
    JobGone,
    JobUnknown,
    JudgeConflict,
    JudgeDenied,
    JudgeInvalid,
    JudgeRefused,
    JudgeStale,
    JudgeUnavailable,
)
from corl.wire import ErrorBody

__all__ = ["Answer", "Attempt", "Fault", "Judge", "Pause", "Request", "Steps", "exchange"]

T = TypeVar("T")
logger = logging.getLogger("corl.client")

SHOWN_CHARACTERS: Final = 500


@dataclass(frozen=True)
class Judge:
    """Who is called: the address without credentials, and the secrets that no text may show."""

    url: str
    secrets: tuple[str, ...] = ()

    def redact(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class Request:
    """One request of a call, as it is sent each time.

    Attributes:
        attempt_s: longest wait for one answer; None leaves it to the deadline.
        job: 404 and 410 are about a job.
        lagging: an answer with weights older than seen may come from a replica that is about to catch up.
        awaited: not to be there yet is expected: tries are logged as information, not as warnings.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    attempt_s: float | None = None
    job: bool = False
    lagging: bool = False
    awaited: bool = False

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Attempt:
    """Send this and wait for the whole answer, at most `timeout_s` seconds."""

    request: Request
    timeout_s: float


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Answer:
    """A whole answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Fault:
    """No whole answer. `passing`: may be gone next time; `lasting`: will not; `invalid`: more than a judge may send."""

    text: str
    kind: Literal["passing", "lasting", "invalid"] = "passing"
    error: Exception | None = None


Steps = Generator[Attempt | Pause, Answer | Fault | None, T]


def exchange(
    judge: Judge, request: Request, read: Callable[[Answer], T], *, deadline: Deadline, backoff: Backoff
) -> Steps[T]:
    """Send a request until it has a good answer, and read that.

    Sent again: transport faults (half a body too), 408, 429, 502-504, until the deadline; other 5xx, and answers with
    weights older than seen from a judge that may be `lagging`, `backoff.doubts` times. Never another 4xx, nor an answer
    that is invalid.

    Raises:
        JudgeUnavailable, JudgeRefused, JudgeInvalid: see `corl.errors`; and what `read` raises.
    """
    attempts = doubts = 0
    outcomes: list[str] = []  # the last two that differ, in words
    answer: Answer | None = None  # the last one, though faults may have come after it
    cause: Exception | None = None

    def unavailable(why: str) -> JudgeUnavailable:
        # The deadline may have cut the last attempt short; what came before then says more.
        last = outcomes[-1] if outcomes else "nothing was sent"
        earlier = f"; before that: {outcomes[-2]}" if len(outcomes) > 1 else ""
        return JudgeUnavailable(
            f"{why} ({attempts} attempt{'' if attempts == 1 else 's'} in a deadline of {deadline.seconds:g} s); "
            f"last: {last}{earlier}",
            url=judge.url,
            route=request.route,
            deadline_s=deadline.seconds,
            attempts=attempts,
            last=last,
            status=answer.status if answer else None,
            problem=_problem(answer) if answer else None,
        )

    while True:
        remaining = deadline.remaining()
        if remaining <= 0:
            raise unavailable("no good answer") from cause
        reply = yield Attempt(request, remaining if request.attempt_s is None else min(remaining, request.attempt_s))
        attempts += 1
        asked: float | None = None
        if isinstance(reply, Answer):
            answer, cause = reply, None
            # A job's DELETE whose first answer was lost finds nothing the second time: that is its success.
            gone = request.job and request.method == "DELETE" and attempts > 1 and reply.status in (404, 410)
            if gone or 200 <= reply.status < 300:
                try:
                    return read(reply)
                except JudgeStale as stale:
                    if not request.lagging or doubts >= backoff.doubts:
                        raise
                    doubts, outcome = doubts + 1, str(stale)
            else:
                outcome = _describe(judge, reply)
                if reply.status in RETRIED_STATUSES:
                    asked = retry_after(reply.headers)
                elif reply.status >= 500 and doubts < backoff.doubts:
                    doubts += 1
                else:
                    raise _refused(judge, request, reply, outcome)
        else:
            assert isinstance(reply, Fault)
            outcome, cause = judge.redact(reply.text), reply.error
            if reply.kind == "invalid":
                raise JudgeInvalid(outcome, url=judge.url, route=request.route) from cause
            if reply.kind == "lasting":
                outcomes = [*outcomes[-1:], outcome]
                raise unavailable("cannot be reached") from cause
        if outcomes[-1:] != [outcome]:
            outcomes = [*outcomes[-1:], outcome]
        remaining = deadline.remaining()
        if asked is not None and asked >= remaining:
            raise unavailable(f"asks to come back in {asked:g} s, which is past the deadline") from cause
        pause = backoff.pause(attempts, remaining - (asked or 0.0))
        if pause is None:
            raise unavailable("no good answer") from cause
        pause += asked or 0.0
        logger.log(
            logging.INFO if request.awaited else logging.WARNING,
            "judge %s: %s: %s; attempt %d, again in %.1f s, %.0f s left",
            judge.url,
            request.route,
            outcome,
            attempts,
            pause,
            remaining,
        )
        yield Pause(pause)


def _refused(judge: Judge, request: Request, answer: Answer, text: str) -> JudgeRefused:
    kinds: dict[int, type[JudgeRefused]] = {401: JudgeDenied, 403: JudgeDenied, 409: JudgeConflict}
    if request.job:
        kinds |= {404: JobUnknown, 410: JobGone}
    if 300 <= answer.status < 400:
        text += "; redirects are not followed, give the judge's own address"
    kind = kinds.get(answer.status, JudgeRefused)
    return kind(text, url=judge.url, route=request.route, status=answer.status, problem=_problem(answer))


def _problem(answer: Answer) -> ErrorBody | None:
    if not answer.headers.get("content-type", "").partition(";")[0].strip().endswith("json"):
        return None
    try:
        return ErrorBody.model_validate_json(answer.body)
    except ValidationError:
        return None


def _describe(judge: Judge, answer: Answer) -> str:
    """The answer in a line: status, and the judge's own words."""
    try:
        phrase = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = str(answer.status)
    problem = _problem(answer)
    if problem is None:
        words = answer.body[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")
    else:
        fields = [f"{error.field}: {error.message}" for error in problem.errors]
        words = "; ".join(filter(None, [problem.detail or problem.title, *fields]))
    words = " ".join(judge.redact(words).split())
    return f"{phrase}: {words[:SHOWN_CHARACTERS]}" if words else phrase
