"""Counting: from spellings and their weights to a vote, and from a vote to who agrees with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Literal

from corl.answers.keys import AnswerKey
from corl.attachment import belongs, class_key, joins

__all__ = ["Number", "RunnerUp", "Spelling", "Ties", "Vote", "VoteStatus", "attach", "exact", "plurality"]

VoteStatus = Literal["ok", "tie", "weak", "none"]
Ties = Literal["abstain", "first"]
Number = int | Fraction
"""A count, or an exact sum of weights; integral ones are ints."""


def exact(number: float | Number) -> Number:
    """A number as an exact one: a float is taken at its exact binary value. Raises ValueError unless it is >= 0."""
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(f"weight {number!r}: expected a finite number")
    fraction = Fraction(number)
    if fraction < 0:
        raise ValueError(f"weight {number!r}: expected a number >= 0")
    return fraction.numerator if fraction.denominator == 1 else fraction


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way of writing an answer, how often it was given, the sum of its weights, and where it stood first."""

    answer: str
    key: AnswerKey
    count: int
    weight: Number
    first: int


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The answer with the next highest count; the smaller key where two have it."""

    answer: str
    key: AnswerKey
    count: Number


@dataclass(frozen=True, slots=True)
class Vote:
    """The plurality of a group of answers.

    Attributes:
        status: `ok`; `tie` (two answers have the highest count); `weak` (share below the threshold, or fewer answers
            than `min_parsed`); `none` (no answer at all). A tie that is also weak is a `tie`.
        answer: the winner as it was most often written, then shortest, then first in the alphabet; set when `ok` or
            `weak`. A rounded decimal that joined an exact class never gives the name.
        key: the key of the class that `answer` is of.
        keys: the keys of all classes joined to the winner's, `key` among them, each with the marks of its class.
        count, parsed, total: answers for the winner (for each of the tied), answers found, completions; sums of
            weights where weights were given.
        share: count / parsed; 0.0 without answers.
        runner_up: None if there is no other answer, or no winner.
    """

    status: VoteStatus
    answer: str | None = None
    key: AnswerKey | None = None
    keys: frozenset[AnswerKey] = frozenset()
    count: Number = 0
    parsed: Number = 0
    total: Number = 0
    share: float = 0.0
    runner_up: RunnerUp | None = None

    @property
    def labeled(self) -> bool:
        """Whether the vote is a label: only then does any completion have a reward."""
        return self.status == "ok"


def plurality(
    spellings: Iterable[Spelling],
    total: Number,
    *,
    threshold: float = 0.0,
    ties: Ties = "abstain",
    min_parsed: int = 2,
) -> Vote:
    """The vote of counted answers; `total` is the weight of all, those without an answer included.

    Args:
        threshold: least share, in 0..1, that makes a label.
        ties: `abstain` (a tie is no label) or `first` (the answer that stands first wins).
        min_parsed: least number of answers (not their weights) that makes a label.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold {threshold!r}: expected a share between 0 and 1")
    if ties not in ("abstain", "first"):
        raise ValueError(f"ties {ties!r}: expected 'abstain' or 'first'")
    if min_parsed < 1:
        raise ValueError(f"min_parsed {min_parsed!r}: expected 1 or more")
    groups = _groups(spellings)
    if not groups:
        return Vote("none", total=total)
    parsed = exact(sum(group.count for group in groups))
    leaders = [group for group in groups if group.count == groups[0].count]
    winner = min(leaders, key=lambda group: group.first) if ties == "first" else groups[0]
    share = float(winner.count / parsed)
    if len(leaders) > 1 and ties != "first":
        return Vote("tie", count=winner.count, parsed=parsed, total=total, share=share)
    found = sum(spelling.count for group in groups for spelling in group.spellings)
    second = next((group for group in groups if group is not winner), None)
    return Vote(
        status="weak" if share < threshold or found < min_parsed else "ok",
        answer=winner.name.answer,
        key=winner.key,
        keys=frozenset(winner.keys.values()),
        count=winner.count,
        parsed=parsed,
        total=total,
        share=share,
        runner_up=None if second is None else RunnerUp(second.name.answer, second.key, second.count),
    )


def attach(key: AnswerKey | None, vote: Vote) -> bool:
    """Whether an answer with this key is the vote's answer; never for None (no answer) or for a vote without one."""
    return key is not None and belongs(key, vote.keys)


@dataclass(frozen=True, slots=True)
class _Group:
    """Classes that were joined, with the spelling that names them."""

    keys: Mapping[AnswerKey, AnswerKey]
    spellings: tuple[Spelling, ...]
    name: Spelling
    count: Number
    first: int

    @property
    def key(self) -> AnswerKey:
        return self.keys[self.name.key]


def _groups(spellings: Iterable[Spelling]) -> list[_Group]:
    """The groups that have any weight, by (count descending, key of the name)."""
    classes: dict[AnswerKey, list[Spelling]] = {}
    for spelling in spellings:
        classes.setdefault(spelling.key, []).append(spelling)
    made = joins({key: (sum(s.weight for s in found), [s.key for s in found]) for key, found in classes.items()})
    centres = {join.attached: join.centre for join in made}
    rounded = {join.attached for join in made if join.rounded}
    members: dict[AnswerKey, list[AnswerKey]] = {}
    for key in classes:
        members.setdefault(centres.get(key, key), []).append(key)
    groups = []
    for keys in members.values():
        found = [s for key in keys for s in classes[key]]
        weight = exact(sum(s.weight for s in found))
        if weight == 0:
            continue
        weighty = [s for s in found if s.weight > 0]
        name = min(weighty, key=lambda s: (s.key in rounded, -s.weight, len(s.answer), s.answer, str(s.key)))
        groups.append(
            _Group(
                keys={key: class_key(s.key for s in classes[key]) for key in keys},
                spellings=tuple(weighty),
                name=name,
                count=weight,
                first=min(s.first for s in weighty),
            )
        )
    return sorted(groups, key=lambda group: (-group.count, group.key.canonical))
