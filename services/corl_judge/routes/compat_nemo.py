"""A NeMo-Gym resources server at the root: `corl judge --compat nemo-gym`. Its client adds no prefix of its own, but
may put `/ng-rollout/ID` before any path.

The client waits without a limit and never retries a status: time is bounded here, and a fault is a 5xx, which ends the
rollout. The same sample sent again finds its vote filed, and gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from corl_judge.compat import nemo
from corl_judge.compat.answering import Sample, recovered
from corl_judge.compat.options import Options, chosen
from corl_judge.compat.wire import AggregateRequest, VerifyRequest
from corl_judge.errors import Invalid
from corl_judge.routes.answering import body, documented, json_body, service_of
from corl_judge.routes.compat import ask, template_of

__all__ = ["router"]

router = APIRouter(tags=["other trainers"])

PREFIX = "/ng-rollout/{rollout_id}"
VERIFY_EXAMPLE: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 2 + 2?"}]},
    "response": {
        "id": "resp_1",
        "object": "response",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "It is \\boxed{4}.", "annotations": []}],
            }
        ],
    },
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
AGGREGATE_EXAMPLE = {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0, "mask_sample": False}]}


def _route(method: str, path: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The path itself, and behind a rollout's prefix, which is left out of the OpenAPI document."""

    def both(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        router.add_api_route(path, endpoint, methods=[method], **described)
        router.add_api_route(f"{PREFIX}{path}", endpoint, methods=[method], include_in_schema=False)
        return endpoint

    return both


@_route(
    "POST",
    "/verify",
    response_model=dict[str, Any],
    responses=documented(413, 422, 429, 502),
    openapi_extra=json_body(VerifyRequest, VERIFY_EXAMPLE),
    summary="Reward of one rollout",
)
async def verify(request: Request) -> Response:
    """The same body with `reward`; without a label `mask_sample` is true."""
    wanted = await body(request, VerifyRequest)
    service = service_of(request)
    service.require_started()
    choice = chosen(Options(), service.settings)
    label = (wanted.model_extra or {}).get("problem_id")
    template = template_of(service.settings.compat_template)
    question = recovered(
        service,
        choice,
        template,
        nemo.problem(wanted.responses_create_params),
        label,
        "responses_create_params.input",
    )
    [verdict] = await ask(request, service, [Sample(question, nemo.answer_text(wanted.response))], choice)
    return _json(nemo.verified(wanted, verdict))


@_route("POST", "/seed_session", response_model=dict[str, Any], responses=documented(413), summary="Start of a rollout")
async def seed_session(request: Request) -> Response:
    """Nothing is kept between requests."""
    return _json({})


@_route(
    "POST",
    "/aggregate_metrics",
    response_model=dict[str, Any],
    responses=documented(413, 422),
    openapi_extra=json_body(AggregateRequest, AGGREGATE_EXAMPLE),
    summary="Metrics over verify responses",
)
async def aggregate_metrics(request: Request) -> Response:
    """Statistics of every numeric field, for each task and over all; masked samples are left out."""
    wanted = await body(request, AggregateRequest)
    return _json(nemo.aggregate(wanted.verify_responses))


@_route("GET", "/reverify_mode", response_model=str, responses=documented(), summary="Whether verify may be repeated")
async def reverify_mode() -> Response:
    """It may: a verdict depends on what is sent and on the judge's weights alone."""
    return _json("stateless")


@_route("GET", "/", response_model=dict[str, str], responses=documented(), summary="Whether the server is there")
async def root() -> Response:
    return _json({"status": "ok"})


def _json(content: Any) -> Response:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise Invalid("the body holds NaN or an infinite number, which is no JSON (RFC 8259) to give back") from error
    return Response(text, media_type="application/json")
