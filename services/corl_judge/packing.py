"""Responses at rest: like JSON, but token ids as int32 and log-probabilities as float32 bytes, in msgpack."""

from __future__ import annotations

from typing import Any, cast

import msgpack

from corl.wire import ErrorBody, RolloutsResponse, ScoresResponse
from corl_judge.items import pack_floats, pack_ints, unpack_floats, unpack_ints

__all__ = ["pack", "unpack"]

Outcome = RolloutsResponse | ScoresResponse | ErrorBody


def pack(outcome: Outcome) -> bytes:
    body = outcome.model_dump()
    if isinstance(outcome, RolloutsResponse):
        for problem in body["problems"]:
            problem["prompt_token_ids"] = pack_ints(problem["prompt_token_ids"])
            for completion in problem["completions"]:
                completion["token_ids"] = pack_ints(completion["token_ids"])
                completion["logprobs"] = pack_floats(completion["logprobs"])
    return cast(bytes, msgpack.packb((type(outcome).__name__, body)))


def unpack(packed: bytes) -> Outcome:
    name, body = cast("tuple[str, dict[str, Any]]", msgpack.unpackb(packed))
    if name == ErrorBody.__name__:
        return ErrorBody.model_validate(body)
    if name == ScoresResponse.__name__:
        return ScoresResponse.model_validate(body)
    for problem in body["problems"]:
        problem["prompt_token_ids"] = unpack_ints(problem["prompt_token_ids"])
        for completion in problem["completions"]:
            completion["token_ids"] = unpack_ints(completion["token_ids"])
            completion["logprobs"] = unpack_floats(completion["logprobs"])
    return RolloutsResponse.model_validate(body)
