"""`POST /v1/scores`: rewards by this member's vote."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from corl.wire import ScoresRequest, ScoresResponse
from corl_judge.routes.answering import answered, body, documented, json_body, respond, service_of

__all__ = ["EXAMPLE", "router"]

router = APIRouter(tags=["scores"])

EXAMPLE = {
    "items": [
        {
            "id": "p1",
            "problem_id": "p1",
            "prompt": "What is 2 + 2? Put the answer in \\boxed{}.",
            "completions": ["It is \\boxed{4}.", "It is \\boxed{5}."],
        }
    ],
    "policy": {"samples": 8, "threshold": 0.0, "min_parsed": 2},
}


@router.post(
    "/v1/scores",
    response_model=ScoresResponse,
    responses=documented(413, 422, 429),
    openapi_extra=json_body(ScoresRequest, EXAMPLE),
    summary="Reward completions by agreement with this member's vote",
)
async def scores(request: Request) -> Response:
    """Each item's completions against the vote: filed answers are used as they are, else waited for, else sampled.

    An item is `scored`, `unlabeled` (the vote is no label: rewards are null) or `failed`; one never fails the others.
    """
    wanted = await body(request, ScoresRequest)
    service = service_of(request)
    return respond(
        await answered(
            request,
            service.open["scores"],
            min(service.settings.deadline_s, wanted.policy.wait_s + service.settings.item_deadline_s),
            lambda asker: service.judge.scores(wanted, asker),
            run=wanted.run,
            step=wanted.step,
        )
    )
