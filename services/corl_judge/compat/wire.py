"""The bodies of other projects' reward clients, as they send them. Unknown fields are theirs to add."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "BODIES",
    "AggregateRequest",
    "OpenRLHFRequest",
    "OpenRLHFResponse",
    "SlimeRequest",
    "SlimeReward",
    "VerifyRequest",
]


class Body(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class OpenRLHFRequest(Body):
    """`query[i]` is prompt and response decoded together; `labels[i]` anything, or null. May be empty."""

    query: list[str]
    prompts: list[str]
    labels: list[Any]

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        if not len(self.query) == len(self.prompts) == len(self.labels):
            raise ValueError(
                f"query, prompts and labels have {len(self.query)}, {len(self.prompts)} and {len(self.labels)} "
                "entries: send one of each a sample"
            )
        return self


class OpenRLHFResponse(BaseModel):
    """One entry a sample in every list. `scores` is what dynamic filtering looks at."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


class SlimeRequest(Body):
    """`prompt` is text, or messages where slime applies no chat template."""

    prompt: str | list[dict[str, Any]] = Field(min_length=1)
    response: str
    label: Any = None


class SlimeReward(BaseModel):
    """The answer where `reward_key` is given; the reward's own key is that one."""

    model_config = ConfigDict(extra="allow")

    labeled: float
    vote_share: float


class VerifyRequest(Body):
    """NeMo-Gym's `POST /verify`: the request to the model, its response (both in OpenAI's Responses form), and the
    fields of the data set's row. All of it comes back."""

    responses_create_params: dict[str, Any]
    response: dict[str, Any]


class AggregateRequest(Body):
    """NeMo-Gym's `POST /aggregate_metrics`."""

    verify_responses: list[dict[str, Any]]


BODIES: tuple[type[BaseModel], ...] = (OpenRLHFRequest, SlimeRequest, VerifyRequest, AggregateRequest)
