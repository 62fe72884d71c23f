"""What the routes share: reading a body, answering while watching the client and the drain, documented errors."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from corl_judge import errors
from corl_judge.limits import Open
from corl_judge.logs import bound
from corl_judge.sampling import Asker
from corl_judge.service import Service
from corl_judge.tasks import end

__all__ = ["answered", "body", "documented", "json_body", "respond", "service_of"]

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

SETTLE_S = 1.0
"""Longest that a request outlives the drain of its replica, for a result that is stored and not yet told."""

STATUSES = {
    401: "The API key is missing or wrong.",
    404: "There is no such thing.",
    409: "A newer trainer or newer weights have taken over, or a key was used for another body.",
    410: "It was there, but is past its retention.",
    413: "The body is larger than this judge takes.",
    422: "The request is not valid; `errors` names the fields.",
    429: "The judge has as much work as it takes; `Retry-After` says when to try again.",
    502: "The engine failed on this work, repeatedly.",
    503: "The judge cannot answer now (starting, draining, its deadline passed, Redis away); see `Retry-After`.",
}


class ClientGone(Exception):
    """The client hung up; nobody reads the answer."""


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: the problem documents that it may answer with."""
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    documents: dict[int | str, dict[str, Any]] = {}
    for status in sorted({401, 503, *statuses}):
        document: dict[str, Any] = {
            "description": STATUSES[status],
            "content": {errors.MEDIA_TYPE: {"schema": schema, "example": _example(status)}},
        }
        if status in (429, 503):
            document["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
        documents[status] = document
    return documents


def json_body(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra=` of a route that reads its body with `body`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


async def body(request: Request, model: type[M]) -> M:
    """The body as the model says, strictly. Raises errors.Invalid naming each wrong field."""
    raw = await request.body()
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        raise errors.invalid(error) from error


def respond(model: BaseModel, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Serialized once; FastAPI would validate and walk megabytes of tokens again."""
    return Response(model.model_dump_json(), status_code=status, media_type="application/json", headers=headers)


async def answered(
    request: Request,
    open_: Open,
    deadline_s: float,
    work: Callable[[Asker], Awaitable[T]],
    *,
    run: str | None = None,
    step: int | None = None,
) -> T:
    """The work's result, unless the client hangs up or this replica drains: then the work's asker is detached.

    Raises ClientGone, errors.Unavailable, errors.TooBusy and whatever the work raises.
    """
    service = service_of(request)
    service.require_started()
    request.scope["corl_log"] = {"run": run, "step": step}
    # Not the request's id, which clients choose: two with one name would withdraw each other's work.
    asker = Asker(f"http-{uuid.uuid4().hex}", time.monotonic() + deadline_s)
    with open_.admitted(), bound(run=run, step=step):
        doing = asyncio.ensure_future(work(asker))
        hung_up = asyncio.create_task(_hung_up(request))
        drained = asyncio.create_task(service.drained.wait())
        try:
            await asyncio.wait({doing, hung_up, drained}, return_when=asyncio.FIRST_COMPLETED)
            if drained.done() and service.replica.dead is None:
                # What was finished last is stored, and the news of it may still be on its way to this asker.
                await asyncio.wait({doing, hung_up}, timeout=SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            if hung_up.done():
                raise ClientGone
            raise errors.Unavailable("this replica is going away; send it again", retry_after=1.0, kind="draining")
        finally:
            await end([doing, hung_up, drained])


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _example(status: int) -> dict[str, Any]:
    problem = _EXAMPLES[status]
    return problem.body(instance="/v1/...").model_dump(exclude_none=True)


def _made(kind: type[errors.Problem], detail: str) -> errors.Problem:
    return kind(detail)


_EXAMPLES: dict[int, errors.Problem] = {
    401: _made(errors.Unauthorized, "send `Authorization: Bearer KEY`"),
    404: _made(errors.NotFound, "there never was a job '0198d2a4c11-0' here"),
    409: errors.Conflict("incarnation 3 of run 'r1' was replaced by 4", kind="fenced"),
    410: _made(errors.Gone, "job '0198d2a4c11-9f' is older than the 7200 s for which jobs are kept"),
    413: _made(errors.TooLarge, "the body has 300000000 bytes or more, this judge takes 268435456"),
    422: errors.Invalid.field("n", "is 1000, this judge takes at most 256 in one request", 1000),
    429: _made(errors.TooBusy, "the queue holds 16384 items, its limit is 16384"),
    502: _made(errors.UpstreamFailed, "1 of 32 problems failed; 'p7': the engine raised"),
    503: _made(errors.Unavailable, "the engine is starting"),
}
