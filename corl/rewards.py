"""Rewards without labels: agreement with a vote, whose vote it is, and the group-relative advantages of GRPO.

A completion's reward is 1.0 if its answer is the vote's, 0.0 if it is another one or if it has none, and None, for the
whole group, where the vote is no label. None is not zero: it takes the rows out of the group's mean and spread.

| source | whose vote | from |
| --- | --- | --- |
| `peer` | the teacher's; of several teachers what `combine` makes of them | Co-RL, arXiv 2608.17253 |
| `self` | the group's own | TTRL, arXiv 2504.16084 |
| `truth` | a known answer | RL with verifiable rewards, the upper bound |
| `collective` | all members' answers together, the member's own included | `collective` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import sqrt
from typing import Literal

from corl.answers import Options, key
from corl.histogram import Histogram
from corl.plurality import Spelling, Ties, Vote, attach, plurality
from corl.votes import tally

__all__ = [
    "Scale",
    "Weighting",
    "advantages",
    "collective",
    "collective_rewards",
    "combine",
    "peer_rewards",
    "rewards",
    "self_rewards",
    "spread",
    "truth_rewards",
    "truth_vote",
]

Weighting = Literal["uniform", "share"]
Scale = Literal["none", "group", "batch"]
SPREAD_FLOOR = 1e-4
"""Added to a standard deviation before dividing by it, as TRL's GRPOTrainer does."""


def rewards(
    answers: Iterable[str | None], vote: Vote, *, task: str = "math", options: Options | None = None
) -> list[float] | list[None]:
    """One reward per answer (None: the completion has no answer) against a vote: 1.0 or 0.0, or None throughout.

    Raises:
        ValueError: the task or the options are malformed.
    """
    given = list(answers)
    if not vote.labeled:
        return [None] * len(given)
    agrees: dict[str | None, float] = {None: 0.0}
    for answer in given:
        if answer is not None and answer not in agrees:
            agrees[answer] = 1.0 if attach(key(answer, task, options), vote) else 0.0
    return [agrees[answer] for answer in given]


# Whose vote ----------------------------------------------------------------------------------------------------------


def combine(votes: Iterable[Vote]) -> Vote:
    """What several teachers say together: the strict plurality of their `ok` votes; a tie is no label.

    Each `ok` vote counts once, whatever its share. Their answers are joined by the same relations as the answers of one
    vote, looking at the keys of all of them. One vote comes back as it is. `total` is the number of teachers, `parsed`
    that of `ok` votes; without any the status is the one nearest to a label: `tie`, `weak`, `none`.

    Raises:
        ValueError: no votes.
    """
    given = list(votes)
    if not given:
        raise ValueError("no votes to combine: a member needs at least one teacher")
    if len(given) == 1:
        return given[0]
    spellings = [s for position, vote in enumerate(given) if vote.labeled for s in _ballot(vote, position)]
    if not spellings:
        statuses = {vote.status for vote in given}
        return Vote("tie" if "tie" in statuses else "weak" if "weak" in statuses else "none", total=len(given))
    return plurality(spellings, len(given), min_parsed=1)


def _ballot(vote: Vote, position: int) -> Iterable[Spelling]:
    """A teacher's vote as one answer; its other keys weigh nothing, but take part in what may be joined."""
    for member in vote.keys:
        own = member == vote.key
        yield Spelling(vote.answer if own and vote.answer else str(member), member, int(own), int(own), position)


def collective(
    histograms: Mapping[str, Histogram], weighting: Weighting = "uniform", *, threshold: float = 0.0
) -> Vote:
    """All members' answers to a problem as one vote: the argmax over answers of the sum of w * count, exactly.

    `histograms`: member -> its answers, the rewarded member's own included. w is 1 (`uniform`) or the share of the
    member's own plurality (`share`), which weighs a member that is at odds with itself down. Ties are no label.

    Raises:
        ValueError: no histograms, or an unknown weighting.
    """
    if not histograms:
        raise ValueError("no histograms: the collective needs at least one member")
    if weighting not in ("uniform", "share"):
        raise ValueError(f"weighting {weighting!r}: expected 'uniform' or 'share'")
    parts = []
    for name in sorted(histograms):
        own = histograms[name].tally(min_parsed=1)
        share = Fraction(own.count) / Fraction(own.parsed) if own.parsed else Fraction(0)
        parts.append((histograms[name], share if weighting == "share" else Fraction(1)))
    return Histogram.pool(parts).tally(threshold=threshold)


def truth_vote(answer: str, *, task: str = "math", options: Options | None = None) -> Vote:
    """A known answer as a vote of one.

    Raises:
        ValueError: the answer is blank, or the task or the options are malformed.
    """
    vote = tally([answer], task=task, options=options, min_parsed=1)
    if not vote.labeled:
        raise ValueError(f"truth {answer!r}: expected an answer, got a blank")
    return vote


def peer_rewards(
    answers: Iterable[str | None], votes: Iterable[Vote], *, task: str = "math", options: Options | None = None
) -> list[float] | list[None]:
    """Rewards against the teachers' votes."""
    return rewards(answers, combine(votes), task=task, options=options)


def self_rewards(
    answers: Iterable[str | None],
    *,
    task: str = "math",
    options: Options | None = None,
    threshold: float = 0.0,
    ties: Ties = "abstain",
    min_parsed: int = 2,
) -> list[float] | list[None]:
    """Rewards against the group's own vote."""
    given = list(answers)
    vote = tally(given, task=task, options=options, threshold=threshold, ties=ties, min_parsed=min_parsed)
    return rewards(given, vote, task=task, options=options)


def truth_rewards(
    answers: Iterable[str | None], truth: str, *, task: str = "math", options: Options | None = None
) -> list[float] | list[None]:
    """Rewards against a known answer."""
    return rewards(answers, truth_vote(truth, task=task, options=options), task=task, options=options)


def collective_rewards(
    answers: Iterable[str | None],
    histograms: Mapping[str, Histogram],
    weighting: Weighting = "uniform",
    *,
    task: str = "math",
    options: Options | None = None,
) -> list[float] | list[None]:
    """Rewards against all members' answers together."""
    return rewards(answers, collective(histograms, weighting), task=task, options=options)


# Advantages ----------------------------------------------------------------------------------------------------------


def advantages(
    rewards: Sequence[float | None], scale: Scale = "group", *, group_size: int | None = None
) -> list[float | None]:
    """Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1) with rows left out.

    A reward of None is not in its group's mean or spread, and its advantage is None (TRL trains such a row with 0).

    Args:
        rewards: of one group, or of several groups of `group_size` one after the other.
        scale: `none` (reward minus the group's mean); `group` or `batch` (that, divided by the unbiased standard
            deviation of the group or of all rewards, plus 1e-4, as TRL's `scale_rewards`). Where one reward is left the
            spread is unknown and its advantage is 0.

    Raises:
        ValueError: an unknown scale, or rewards that do not come in groups of `group_size`.
    """
    if scale not in ("none", "group", "batch"):
        raise ValueError(f"scale {scale!r}: expected 'none', 'group' or 'batch'")
    size = len(rewards) if group_size is None else group_size
    if not rewards:
        return []
    if size < 1 or len(rewards) % size:
        raise ValueError(f"group_size {size}: expected a divisor of the number of rewards, {len(rewards)}")
    batch_spread = spread(rewards)
    result: list[float | None] = []
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        kept = [reward for reward in group if reward is not None]
        mean = sum(kept) / len(kept) if kept else 0.0
        own_spread = spread(group) if scale == "group" else batch_spread
        divisor = 1.0 if scale == "none" else SPREAD_FLOOR + (own_spread or 0.0)
        result += [None if reward is None else (reward - mean) / divisor for reward in group]
    return result


def spread(rewards: Sequence[float | None]) -> float | None:
    """The unbiased standard deviation of the rewards that are there; None for fewer than two."""
    kept = [reward for reward in rewards if reward is not None]
    if len(kept) < 2:
        return None
    mean = sum(kept) / len(kept)
    return sqrt(sum((reward - mean) ** 2 for reward in kept) / (len(kept) - 1))
