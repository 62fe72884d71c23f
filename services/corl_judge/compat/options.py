"""What a caller may choose in its URL, with the judge's settings as defaults:
`http://judge:8101/compat/slime/score?samples=16&on_unlabeled=error`."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from corl.wire import LARGEST, Policy, Task
from corl_judge.settings import Settings

__all__ = ["Choice", "Options", "SlimeOptions", "chosen"]

Label = Literal["ignored", "problem_id"]
OnUnlabeled = Literal["zero", "error"]


class Options(BaseModel):
    """Of `/compat/openrlhf/get_reward`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: Annotated[int | None, Query(ge=1, le=LARGEST, description="completions of a vote")] = None
    threshold: Annotated[float, Query(ge=0.0, le=1.0, description="least share of the winner")] = 0.0
    min_parsed: Annotated[int, Query(ge=1, le=LARGEST, description="least number of answers")] = 2
    ties: Annotated[Literal["abstain", "first"], Query(description="what a tie is")] = "abstain"
    task: Annotated[Task, Query(description="how answers are read and compared")] = "math"
    on_unlabeled: Annotated[OnUnlabeled | None, Query(description="what a sample without a label gets")] = None
    label: Annotated[Label | None, Query(description="whether labels are problem ids of the cohort file")] = None


class SlimeOptions(Options):
    """Of `/compat/slime/score`."""

    reward_key: Annotated[
        str | None, Query(min_length=1, max_length=64, description="as slime's --reward-key: the reward's key")
    ] = None


class Choice(BaseModel):
    """Options and settings put together."""

    model_config = ConfigDict(frozen=True)

    policy: Policy
    task: Task
    on_unlabeled: OnUnlabeled
    label: Label
    deadline_s: float = Field(gt=0)


def chosen(options: Options, settings: Settings) -> Choice:
    samples = settings.compat_samples if options.samples is None else options.samples
    return Choice(
        policy=Policy(samples=samples, threshold=options.threshold, ties=options.ties, min_parsed=options.min_parsed),
        task=options.task,
        on_unlabeled=settings.compat_on_unlabeled if options.on_unlabeled is None else options.on_unlabeled,
        label=settings.compat_label if options.label is None else options.label,
        deadline_s=settings.compat_deadline_s,
    )
