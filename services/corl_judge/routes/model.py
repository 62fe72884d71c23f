"""`GET /v1/model`: what answers here."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from corl.wire import ModelInfo, TokenizerInfo
from corl_judge.limits import limits
from corl_judge.routes.answering import documented, respond, service_of

__all__ = ["router"]

router = APIRouter(tags=["model"])


@router.get(
    "/v1/model",
    response_model=ModelInfo,
    responses=documented(),
    summary="Member, base model, tokenizer, weights, engine and limits",
)
async def model(request: Request) -> Response:
    service = service_of(request)
    service.require_started()
    settings, facts = service.settings, service.replica.facts
    assert facts is not None
    _, served = await service.replica.weights()
    return respond(
        ModelInfo(
            member=settings.member,
            model=settings.model or facts.name,
            revision=settings.revision,
            frozen=settings.frozen,
            tokenizer=TokenizerInfo(
                vocab_size=facts.vocab_size,
                eos_token_ids=list(facts.eos_token_ids),
                chat_template=facts.chat_template,
            ),
            weights=served,
            engine=facts.name,
            engine_version=facts.version,
            limits=limits(settings, facts.max_model_len),
        )
    )
