"""From texts to answers, histograms and rewards: the pure part of judging, run inline or in a grader process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corl.answers import extract
from corl.rewards import rewards
from corl.votes import Histogram
from corl.wire import Options, Task, Vote, VoteSource, WeightsTag
from corl.wire_votes import to_wire

__all__ = ["Asked", "Verdict", "collect", "judge"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One problem's completions, a filed histogram, and the asker's policy for making it a label."""

    completions: Sequence[str]
    task: Task
    options: Options | None
    histogram: bytes
    threshold: float
    ties: Any
    min_parsed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rewards` is None when the vote is no label; `vote` is as the wire has it, without its source and weights."""

    answers: list[str | None]
    rewards: list[float] | None
    vote: Vote

    def labeled_by(self, source: VoteSource, weights: WeightsTag, *, histogram: bool) -> Vote:
        """The vote with where it comes from; its histogram only if asked for."""
        update: dict[str, Any] = {"source": source, "weights": weights}
        if not histogram:
            update["histogram"] = None
        return self.vote.model_copy(update=update)


def collect(completions: Sequence[str], task: Task, options: Options | None) -> tuple[list[str | None], bytes]:
    """Each completion's answer, and their histogram packed."""
    answers = [extract(text, task, options) for text in completions]
    return answers, Histogram.of(answers, task, options).to_bytes()


def judge(asked: Asked) -> Verdict:
    """Every completion against the vote."""
    histogram = Histogram.from_bytes(asked.histogram)
    vote = histogram.tally(threshold=asked.threshold, ties=asked.ties, min_parsed=asked.min_parsed)
    answers = [extract(text, asked.task, asked.options) for text in asked.completions]
    earned = rewards(answers, vote, task=asked.task, options=asked.options)
    scored = [reward for reward in earned if reward is not None]
    if vote.labeled and len(scored) != len(answers):
        raise AssertionError("a labeled vote must reward every completion")
    return Verdict(answers, scored if vote.labeled else None, to_wire(vote, histogram=histogram))
