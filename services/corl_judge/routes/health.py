"""The probes, which need no key, and `/metrics`, which does."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from corl_judge.metrics import CONTENT_TYPE_LATEST
from corl_judge.routes.answering import documented, service_of

__all__ = ["router"]

router = APIRouter(tags=["health"])


def _probe(description: str) -> dict[int | str, dict[str, Any]]:
    schema = {
        "type": "object",
        "required": ["ok", "state"],
        "properties": {"ok": {"type": "boolean"}, "state": {"type": "string"}, "why": {"type": "string"}},
    }
    content = {"application/json": {"schema": schema}}
    return {
        200: {"description": "Yes.", "content": content},
        503: {"description": f"No: {description}", "content": content},
    }


def _answer(request: Request, ok: bool) -> Response:
    replica = service_of(request).replica
    content: dict[str, Any] = {"ok": ok, "state": replica.state}
    if replica.dead is not None:
        content["why"] = "the engine is dead"
    return JSONResponse(content, status_code=200 if ok else 503, headers={"cache-control": "no-store"})


@router.get("/livez", responses=_probe("the engine is dead or stuck; restart the process."), summary="Alive?")
async def livez(request: Request) -> Response:
    """The process answers and its engine does. A start, and a reload within its deadline, count as alive."""
    return _answer(request, service_of(request).replica.live)


@router.get("/readyz", responses=_probe("not loaded yet, past a reload deadline, or draining."), summary="Accepting?")
async def readyz(request: Request) -> Response:
    """Requests are welcome."""
    return _answer(request, service_of(request).replica.ready and not service_of(request).draining.is_set())


@router.get("/startupz", responses=_probe("the first load is not done."), summary="Started?")
async def startupz(request: Request) -> Response:
    """The first load is done, of the desired weights where there are some."""
    return _answer(request, service_of(request).replica.started)


@router.get(
    "/metrics",
    responses={200: {"description": "Prometheus text format.", "content": {"text/plain": {}}}, **documented()},
    response_class=Response,
    summary="Metrics",
)
async def metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
