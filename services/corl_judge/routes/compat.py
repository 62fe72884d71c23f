"""`/compat`: the remote rewards of OpenRLHF and slime. Errors are statuses, on which both retry and then stop."""

from __future__ import annotations

import json
from functools import lru_cache
from re import Pattern
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from corl.adapters.texts import prompt_of
from corl_judge.compat.answering import Sample, judged, recovered
from corl_judge.compat.coalesce import Judged
from corl_judge.compat.options import Choice, Options, SlimeOptions, chosen
from corl_judge.compat.rendered import compiled, completion_of
from corl_judge.compat.wire import OpenRLHFRequest, OpenRLHFResponse, SlimeRequest, SlimeReward
from corl_judge.errors import Invalid
from corl_judge.routes.answering import answered, body, documented, json_body, respond, service_of
from corl_judge.service import Service

__all__ = ["ask", "router", "template_of"]

router = APIRouter(tags=["other trainers"])

SLACK_S = 30.0
PROMPT = "What is 2 + 2? Put the answer in \\boxed{}."
OPENRLHF_EXAMPLE = {"query": [f"{PROMPT} It is \\boxed{{4}}."], "prompts": [PROMPT], "labels": [None]}
SLIME_EXAMPLE = {"prompt": PROMPT, "response": "It is \\boxed{4}.", "label": None}


@router.post(
    "/compat/openrlhf/get_reward",
    response_model=OpenRLHFResponse,
    responses=documented(413, 422, 429, 502),
    openapi_extra=json_body(OpenRLHFRequest, OPENRLHF_EXAMPLE),
    summary="OpenRLHF's remote reward (--reward.remote_url)",
)
async def openrlhf(request: Request, options: Annotated[Options, Query()]) -> Response:
    """One entry a sample, and none for none: with several URLs OpenRLHF sends all samples to the first of them.

    A sample without a label gets 0 and `extra_logs.labeled` 0, or with `on_unlabeled=error` a 422.
    """
    wanted = await body(request, OpenRLHFRequest)
    service = service_of(request)
    service.require_started()
    choice = chosen(options, service.settings)
    template = template_of(service.settings.compat_template)
    samples = [
        Sample(
            recovered(service, choice, template, prompt, label, f"prompts.{index}"),
            _completion(query, prompt, f"query.{index}"),
        )
        for index, (query, prompt, label) in enumerate(zip(wanted.query, wanted.prompts, wanted.labels, strict=True))
    ]
    verdicts = await ask(request, service, samples, choice)
    rewards = [_reward(verdict) for verdict in verdicts]
    return respond(
        OpenRLHFResponse(
            rewards=rewards,
            scores=rewards,
            extra_logs={
                "labeled": [_labeled(verdict) for verdict in verdicts],
                "vote_share": [verdict.vote.share for verdict in verdicts],
            },
        )
    )


@router.post(
    "/compat/slime/score",
    response_model=float | SlimeReward,
    responses=documented(413, 422, 429, 502),
    openapi_extra=json_body(SlimeRequest, SLIME_EXAMPLE),
    summary="slime's remote reward model (--rm-type remote_rm --rm-url)",
)
async def slime(request: Request, options: Annotated[SlimeOptions, Query()]) -> Response:
    """The body is the reward: a number, or an object where the URL has `reward_key`, as slime's --reward-key says.

    A sample without a label gets 0, or with `on_unlabeled=error` a 422.
    """
    wanted = await body(request, SlimeRequest)
    service = service_of(request)
    service.require_started()
    choice = chosen(options, service.settings)
    try:
        prompt = prompt_of(wanted.prompt)
    except ValueError as error:
        raise Invalid.field("prompt", str(error).removeprefix("prompt: ")) from error
    template = template_of(service.settings.compat_template)
    question = recovered(service, choice, template, prompt, wanted.label, "prompt")
    [verdict] = await ask(request, service, [Sample(question, wanted.response)], choice)
    reward = _reward(verdict)
    if options.reward_key is None:
        return Response(json.dumps(reward), media_type="application/json")
    told = {"labeled": _labeled(verdict), "vote_share": verdict.vote.share, options.reward_key: reward}
    return respond(SlimeReward(**told))


async def ask(request: Request, service: Service, samples: list[Sample], choice: Choice) -> list[Judged]:
    """Verdicts in order, while the client is there and this replica does not drain."""
    if not samples:
        return []
    return await answered(
        request,
        service.open["scores"],
        choice.deadline_s + SLACK_S,
        lambda _: judged(service.coalescer, samples, choice),
    )


@lru_cache(maxsize=8)
def template_of(template: str | None) -> Pattern[str] | None:
    return None if template is None else compiled(template)


def _completion(query: str, prompt: str, field: str) -> str:
    completion = completion_of(query, prompt)
    if completion is None:
        raise Invalid.field(field, "does not hold its prompt, so where the response starts is not known", query)
    return completion


def _reward(verdict: Judged) -> float:
    return 0.0 if verdict.reward is None else verdict.reward


def _labeled(verdict: Judged) -> float:
    return 0.0 if verdict.reward is None else 1.0
