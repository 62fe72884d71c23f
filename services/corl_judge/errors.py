"""Errors on the wire: RFC 9457 `application/problem+json` for every status that is not a success.

`type` is a stable URN by which clients tell errors apart; `detail` says what was wrong and what to do about it.
"""

from __future__ import annotations

import http
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from corl.wire import ErrorBody, FieldError

__all__ = [
    "MEDIA_TYPE",
    "Conflict",
    "Gone",
    "Invalid",
    "NotFound",
    "Problem",
    "TooBusy",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UpstreamFailed",
    "field_errors",
    "install",
]

MEDIA_TYPE = "application/problem+json"
MAX_VALUE_CHARS = 200
MAX_FIELD_ERRORS = 50

log = logging.getLogger(__name__)


class Problem(Exception):
    """An error that a caller sees. `retry_after` is in seconds."""

    status = 500
    kind = "internal"
    title = "Internal error"

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        retry_after: float | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = list(errors)
        self.retry_after = retry_after
        if kind is not None:
            self.kind = kind

    def body(self, instance: str | None = None) -> ErrorBody:
        return ErrorBody(
            type=f"urn:corl:{self.kind}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            instance=instance,
            errors=self.errors,
        )

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(max(1, round(self.retry_after)))}


class Unauthorized(Problem):
    status, kind, title = 401, "unauthorized", "The API key is missing or wrong"

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": 'Bearer realm="corl", Basic realm="corl", charset="UTF-8"'}


class NotFound(Problem):
    status, kind, title = 404, "not-found", "Not found"


class Conflict(Problem):
    """`kind` is `fenced` when a newer incarnation or version has taken over, `conflict` otherwise."""

    status, kind, title = 409, "conflict", "The request conflicts with what the judge knows"


class Gone(Problem):
    status, kind, title = 410, "gone", "No longer kept"


class TooLarge(Problem):
    status, kind, title = 413, "too-large", "The request is too large"


class Invalid(Problem):
    status, kind, title = 422, "invalid", "The request is not valid"

    @classmethod
    def field(cls, field: str, message: str, value: object = None) -> Invalid:
        shown = None if value is None else str(value)[:MAX_VALUE_CHARS]
        return cls(f"{field}: {message}", errors=[FieldError(field=field, message=message, value=shown)])


class TooBusy(Problem):
    status, kind, title = 429, "busy", "The judge has as much work as it takes"


class UpstreamFailed(Problem):
    status, kind, title = 502, "engine-failed", "The engine failed on this work"


class Unavailable(Problem):
    status, kind, title = 503, "unavailable", "The judge cannot answer now"


def field_errors(raised: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Pydantic's errors as field, message and a shortened value; never more than MAX_FIELD_ERRORS."""
    errors: list[FieldError] = []
    for error in raised:
        if len(errors) == MAX_FIELD_ERRORS:
            break
        field = ".".join(str(part) for part in error["loc"]) or "body"
        value = error.get("input")
        shown = repr(value)[:MAX_VALUE_CHARS] if isinstance(value, str | int | float | bool) else None
        errors.append(FieldError(field=field, message=str(error["msg"]), value=shown))
    return errors


def invalid(error: ValidationError | RequestValidationError) -> Invalid:
    raised = (
        error.errors(include_url=False, include_context=False) if isinstance(error, ValidationError) else error.errors()
    )
    fields = field_errors(raised)
    detail = "; ".join(f"{f.field}: {f.message}" for f in fields[:3]) or "the body is not valid"
    return Invalid(detail, errors=fields)


def response(problem: Problem, scope: Scope) -> Response:
    body = problem.body(instance=scope.get("path"))
    return Response(
        body.model_dump_json(exclude_none=True),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=problem.headers(),
    )


async def send(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer from a middleware, before any route is reached."""
    await response(problem, scope)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Every way to fail ends as a problem document."""

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return response(error, request.scope)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return response(invalid(error), request.scope)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = Problem(str(error.detail), kind=http.HTTPStatus(error.status_code).phrase.lower().replace(" ", "-"))
        problem.status = error.status_code
        problem.title = http.HTTPStatus(error.status_code).phrase
        answer = response(problem, request.scope)
        answer.headers.update(error.headers or {})
        return answer

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


class LastResort:
    """Middleware: an exception nobody expected is logged with its cause and answered with 500, without its text."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Problem as problem:
            if started:
                raise
            await response(problem, scope)(scope, receive, send)
        except Exception:
            log.exception("unexpected error in %s %s", scope.get("method"), scope.get("path"))
            if started:
                raise
            unexpected = Problem("an unexpected error; the judge's log has the cause under this request's id")
            await response(unexpected, scope)(scope, receive, send)
