"""`/v1/jobs`: rollouts and scores done in the background, by any replica."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from corl.wire import JobRequest, JobStatus
from corl_judge.errors import Invalid
from corl_judge.routes import scores
from corl_judge.routes.answering import answered, body, documented, json_body, respond, service_of

__all__ = ["router"]

router = APIRouter(tags=["jobs"])

JobName = Annotated[str, Path(max_length=128, examples=["0198d2a4c11-9f2c4e6a8b0d1357"])]
EXAMPLE = {"kind": "scores", "request": scores.EXAMPLE}


@router.post(
    "/v1/jobs",
    status_code=202,
    response_model=JobStatus,
    responses=documented(409, 413, 422, 429),
    openapi_extra=json_body(JobRequest, EXAMPLE),
    summary="Start a request in the background",
)
async def submit(
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(max_length=256, description="the same key and body are the same job")
    ] = None,
) -> Response:
    """202 with the job's address in `Location`. The same `Idempotency-Key` with another body is a 409."""
    job = await _job(request)
    service = service_of(request)
    service.require_started()
    with service.open["jobs"].admitted():
        status, _ = await service.background.submit(job, idempotency_key)
    return respond(status, status=202, headers={"location": f"/v1/jobs/{status.id}"})


async def _job(request: Request) -> JobRequest:
    """As `body`, but with the errors of the kind that was named, not of both."""
    try:
        return await body(request, JobRequest)
    except Invalid as error:
        named = (await _named(request)).get("kind")
        model = {"rollouts": "RolloutsRequest", "scores": "ScoresRequest"}.get(str(named))
        own = [f for f in error.errors if model is None or not f.field.startswith("request.") or f".{model}" in f.field]
        fields = [f.model_copy(update={"field": f.field.replace(f".{model}", "")}) for f in own or error.errors]
        detail = "; ".join(f"{f.field}: {f.message}" for f in fields[:3])
        raise Invalid(detail, errors=fields) from error


async def _named(request: Request) -> dict[str, Any]:
    try:
        said = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


@router.get(
    "/v1/jobs/{job_id}",
    response_model=JobStatus,
    responses=documented(404, 410, 422, 429),
    summary="How far a job is; its result when it is done",
)
async def show(
    request: Request,
    job_id: JobName,
    wait_s: Annotated[float, Query(ge=0, le=86_400, description="wait this long for the end")] = 0.0,
) -> Response:
    """404 for a job that never was, 410 for one that is past its retention."""
    service = service_of(request)
    longest = min(wait_s, service.settings.deadline_s)
    return respond(
        await answered(
            request, service.open["jobs"], longest + 60.0, lambda _: service.background.status(job_id, longest)
        )
    )


@router.delete(
    "/v1/jobs/{job_id}",
    response_model=JobStatus,
    responses=documented(404, 410, 422),
    summary="Withdraw from a job",
)
async def cancel(request: Request, job_id: JobName) -> Response:
    """Work that nobody else waits for stops; what has ended stays as it is."""
    service = service_of(request)
    service.require_started()
    return respond(await service.background.cancel(job_id))
