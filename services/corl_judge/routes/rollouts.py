"""`POST /v1/rollouts`: completions for the member's own trainer."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from corl.wire import RolloutsRequest, RolloutsResponse
from corl_judge.routes.answering import answered, body, documented, json_body, respond, service_of

__all__ = ["EXAMPLE", "router"]

router = APIRouter(tags=["rollouts"])

EXAMPLE = {
    "problems": [{"problem_id": "p1", "prompt": "What is 2 + 2? Put the answer in \\boxed{}."}],
    "n": 4,
    "sampling": {"max_tokens": 256, "temperature": 1.0},
    "run": "demo",
    "step": 0,
}


@router.post(
    "/v1/rollouts",
    response_model=RolloutsResponse,
    responses=documented(409, 413, 422, 429, 502),
    openapi_extra=json_body(RolloutsRequest, EXAMPLE),
    summary="Sample completions with their log-probabilities, answers and vote",
)
async def rollouts(request: Request) -> Response:
    """n completions of each problem, all of one version of the weights each, in the order of the request.

    The answers of `purpose: train` in a run are filed as this member's vote of that step. The same request sent again
    joins the work under way, or gets its stored result.
    """
    wanted = await body(request, RolloutsRequest)
    service = service_of(request)
    return respond(
        await answered(
            request,
            service.open["rollouts"],
            wanted.deadline_s,
            lambda asker: service.judge.rollouts(wanted, asker),
            run=wanted.run,
            step=wanted.step,
        )
    )
