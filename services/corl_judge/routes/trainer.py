"""`PUT /v1/trainer`: the lease of a member's trainer. `DELETE /v1/votes`: forget steps that will be done again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from corl.wire import TrainerLease, TrainerUpdate, VotesDropped
from corl_judge.errors import Conflict
from corl_judge.routes.answering import body, documented, json_body, respond, service_of

__all__ = ["router"]

router = APIRouter(tags=["trainer"])

EXAMPLE = {"run": "demo", "step": 18, "ttl_s": 30.0, "incarnation": 1}


@router.put(
    "/v1/trainer",
    response_model=TrainerLease,
    responses=documented(409, 413, 422),
    openapi_extra=json_body(TrainerUpdate, EXAMPLE),
    summary="Take or renew the trainer's lease",
)
async def renew(request: Request) -> Response:
    """Sent every third of `ttl_s`. Without an incarnation it is a new trainer's first call, which is given the next
    one; from then on a lower one is refused with 409."""
    update = await body(request, TrainerUpdate)
    service = service_of(request)
    service.require_started()
    if service.settings.frozen:
        raise Conflict(f"member {service.settings.member!r} is frozen: it has no trainer", kind="frozen")
    lease = await service.leases.renew(update)
    await service.book.drop(update.run, before=update.step - service.settings.keep_steps)
    return respond(lease)


@router.delete(
    "/v1/votes",
    response_model=VotesDropped,
    responses=documented(422),
    summary="Drop the votes of a run's later steps",
)
async def drop_votes(
    request: Request,
    run: Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")],
    after: Annotated[int, Query(ge=0, le=2**53, description="the last step that is kept")],
) -> Response:
    """For a cohort that is restarted at a common checkpoint: votes of the steps it will do again are not to be used."""
    service = service_of(request)
    service.require_started()
    return respond(VotesDropped(run=run, after=after, dropped=await service.book.drop(run, after=after)))
