"""How often each answer to a problem was given: what a judge files, and what any policy can later make a vote of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from corl.answers import AnswerKey, Options, key
from corl.plurality import Number, Spelling, Ties, Vote, exact, plurality

__all__ = ["Histogram"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Spellings by first position; `total` is the weight of all answers, those that were none included.

    It holds spellings and not classes, because the marks of a class and the name of a winner depend on them; nothing
    about a policy is in it, so that one reader's threshold never binds another.
    """

    spellings: tuple[Spelling, ...]
    total: Number

    @classmethod
    def of(
        cls,
        answers: Iterable[str | None],
        task: str = "math",
        options: Options | None = None,
        weights: Iterable[float | Number] | None = None,
    ) -> Histogram:
        """Count answers; None and blanks count in `total` only.

        `weights`: one per answer, 1 each if left out; an answer of weight 0 has no say.

        Raises:
            ValueError: a weight is negative or not finite, or there is not one per answer.
        """
        given = list(answers)
        weighing = [1] * len(given) if weights is None else [exact(weight) for weight in weights]
        if len(weighing) != len(given):
            raise ValueError(f"weights: got {len(weighing)} for {len(given)} answers, expected one each")
        keys: dict[str, AnswerKey | None] = {}
        found: list[Spelling] = []
        for position, (answer, weight) in enumerate(zip(given, weighing, strict=True)):
            if answer is None or weight == 0:
                continue
            if answer not in keys:
                keys[answer] = key(answer, task, options)
            if (answer_key := keys[answer]) is not None:
                found.append(Spelling(answer, answer_key, 1, weight, position))
        return cls(_merged(found), exact(sum(weighing)))

    @classmethod
    def pool(cls, parts: Sequence[tuple[Histogram, float | Number]]) -> Histogram:
        """Several histograms as one, each times its weight; positions continue from one to the next."""
        found: list[Spelling] = []
        total: Number = 0
        offset = 0
        for histogram, factor in parts:
            weight = exact(factor)
            total += histogram.total * weight
            found += [
                Spelling(s.answer, s.key, s.count, exact(s.weight * weight), s.first + offset)
                for s in histogram.spellings
                if weight != 0
            ]
            offset += 1 + max((s.first for s in histogram.spellings), default=0)
        return cls(_merged(found), exact(total))

    def tally(self, *, threshold: float = 0.0, ties: Ties = "abstain", min_parsed: int = 2) -> Vote:
        """The vote of these answers: the same as `corl.votes.tally` of the list. Arguments and errors as there."""
        return plurality(self.spellings, self.total, threshold=threshold, ties=ties, min_parsed=min_parsed)

    def to_bytes(self) -> bytes:
        """Compact JSON, ASCII: [total, [[answer, key, count, first, weight if it is not count], ...]]."""
        rows: list[list[Any]] = []
        for s in self.spellings:
            row = [s.answer, str(s.key), s.count, s.first]
            rows.append(row if s.weight == s.count else [*row, _write(s.weight)])
        return json.dumps([_write(self.total), rows], separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Histogram:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: not bytes that `to_bytes` writes.
        """
        try:
            total, rows = json.loads(data)
            spellings = tuple(
                Spelling(str(answer), AnswerKey.parse(text), int(count), _read(*weight or [count]), int(first))
                for answer, text, count, first, *weight in rows
            )
            return cls(spellings, _read(total))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"not a histogram: {error}") from error


def _merged(found: Iterable[Spelling]) -> tuple[Spelling, ...]:
    merged: dict[tuple[str, str], Spelling] = {}
    for new in found:
        name = (new.answer, str(new.key))
        old = merged.get(name)
        merged[name] = (
            new
            if old is None
            else Spelling(
                new.answer, new.key, old.count + new.count, exact(old.weight + new.weight), min(old.first, new.first)
            )
        )
    return tuple(sorted(merged.values(), key=lambda s: (s.first, s.answer, str(s.key))))


def _write(number: Number) -> int | str:
    return number if isinstance(number, int) else f"{number.numerator}/{number.denominator}"


def _read(number: int | str) -> Number:
    if not isinstance(number, int | str) or isinstance(number, bool):
        raise ValueError(f"expected a number, got {number!r}")
    return exact(Fraction(number))
