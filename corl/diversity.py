"""How different the members of a cohort are, and the signs that a run collapses.

A peer's vote teaches only where it is right and the pupil is wrong, so what counts is that members *err* differently.
Agreement says nothing about that by itself: it is high where all are right, where all share one misconception, and
where all have collapsed onto one constant answer. Read it beside the figures that tell these apart:

==================  ============  ============  =============  ==============  =====================
                    agreement     answer_kappa  error_kappa    concentration   what it is
==================  ============  ============  =============  ==============  =====================
right, diverse      high          high          near 0         low             a healthy cohort
one misconception   high          high          near 1         low             nothing to learn from
one constant        1             undefined     1, undefined   1               collapse
==================  ============  ============  =============  ==============  =====================

Answers are compared by equality: give `corl.answers.AnswerKey`s (or whatever hashable identifies an answer), None for
no answer, aligned by problem. What to watch over a run is in `corl.collapse`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import fsum, log

__all__ = [
    "Diversity",
    "Pair",
    "agreement",
    "agreement_in_error",
    "answer_entropy",
    "answer_kappa",
    "concentration",
    "error_kappa",
    "measure",
]

Answer = Hashable | None


@dataclass(frozen=True)
class Pair:
    """Two members compared; a figure that is undefined is None. See the functions of the same names."""

    problems: int
    agreement: float | None
    answer_kappa: float | None
    error_kappa: float | None
    agreement_in_error: float | None


@dataclass(frozen=True)
class Diversity:
    """A cohort's diversity on a set of problems.

    Attributes:
        pairs: (member, member), in the order of the members -> how they compare.
        entropy: mean over problems of the entropy of the members' answers, in nats: 0 where all say the same, log of
            the number of members where all differ.
        concentration: member -> share of its most frequent answer over all problems.
    """

    pairs: Mapping[tuple[str, str], Pair]
    entropy: float | None
    concentration: Mapping[str, float | None]


def measure(answers: Mapping[str, Sequence[Answer]], truth: Sequence[Answer] | None = None) -> Diversity:
    """Compare all members: member -> its answer to each problem (its vote's key, or one sample's).

    `truth`, where it is known, gives the figures about errors; a completion without an answer is an error.

    Raises:
        ValueError: members, or the truth, do not have the same number of problems.
    """
    lengths = {name: len(given) for name, given in answers.items()} | ({} if truth is None else {"truth": len(truth)})
    if len(set(lengths.values())) > 1:
        raise ValueError(f"answers are aligned by problem, but their numbers differ: {lengths}")
    pairs = {}
    for one, other in combinations(answers, 2):
        a, b = answers[one], answers[other]
        pairs[one, other] = Pair(
            problems=len(a),
            agreement=agreement(a, b),
            answer_kappa=answer_kappa(a, b),
            error_kappa=None if truth is None else error_kappa(a, b, truth),
            agreement_in_error=None if truth is None else agreement_in_error(a, b, truth),
        )
    columns = [column for column in zip(*answers.values(), strict=True) if any(x is not None for x in column)]
    return Diversity(
        pairs=pairs,
        entropy=_mean([answer_entropy(column) for column in columns]),
        concentration={name: concentration(given) for name, given in answers.items()},
    )


def agreement(a: Sequence[Answer], b: Sequence[Answer]) -> float | None:
    """Share of the problems that both answered on which their answers are the same; None if there are none.

    Not a measure of health: two members that always say `0` agree on everything.
    """
    return _mean([float(x == y) for x, y in _both(a, b)])


def answer_kappa(a: Sequence[Answer], b: Sequence[Answer]) -> float | None:
    """Agreement of answers beyond chance: Cohen's kappa over the problems that both answered.

    (observed - expected) / (1 - expected), where `expected` is the agreement of two that answer as often this or that,
    but independently of the problem (Cohen 1960, Educational and Psychological Measurement 20:37-46). For answers that
    differ from problem to problem it is near the agreement itself; for constant answers it is undefined (None), for
    nearly constant ones near 0, however high their agreement.
    """
    return _kappa(_both(a, b))


def error_kappa(a: Sequence[Answer], b: Sequence[Answer], truth: Sequence[Answer]) -> float | None:
    """Whether two members err on the same problems more than their accuracies explain: Cohen's kappa of right/wrong.

    1: the same problems; 0: as by chance; below: each is right where the other errs, which is what a peer can teach.
    None if it is undefined: both are always right, or both always wrong. Known as error consistency (Geirhos et al.
    2020, arXiv 2006.16736). What it cannot see is whether they give the same wrong answer: `agreement_in_error`.
    """
    return _kappa([(x == t, y == t) for x, y, t in zip(a, b, truth, strict=True)])


def agreement_in_error(a: Sequence[Answer], b: Sequence[Answer], truth: Sequence[Answer]) -> float | None:
    """Of the problems on which both answered wrongly, the share with the same wrong answer; None if there are none.

    This is what a peer's vote passes on as if it were right (Kim et al. 2025, Correlated Errors in Large Language
    Models, arXiv 2506.07962).
    """
    wrong = [(x, y) for x, y, t in zip(a, b, truth, strict=True) if t not in (x, y)]
    return _mean([float(x == y) for x, y in wrong if x is not None and y is not None])


def answer_entropy(answers: Iterable[Answer]) -> float:
    """Entropy in nats of the distinct answers of a group: -sum p log p over the shares p of each answer.

    0.0 for one answer, or none at all; log n for n answers that all differ. Semantic entropy (Kuhn et al. 2023, arXiv
    2302.09664) with equal keys as the meaning.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    total = counts.total()
    return fsum(-count / total * log(count / total) for count in counts.values()) if len(counts) > 1 else 0.0


def concentration(answers: Sequence[Answer]) -> float | None:
    """Share of the most frequent answer among a member's answers to *different* problems; None without answers.

    Near 1 on problems with different answers is collapse onto a constant, the end that self-rewarded training was seen
    to run into (Shafayat et al. 2025, Can Large Reasoning Models Self-Train?, arXiv 2505.21444).
    """
    counts = Counter(answer for answer in answers if answer is not None)
    return max(counts.values()) / counts.total() if counts else None


def _both(a: Sequence[Answer], b: Sequence[Answer]) -> list[tuple[Hashable, Hashable]]:
    return [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]


def _kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Cohen's kappa in whole numbers until the last division, so that "undefined" is exact."""
    n = len(pairs)
    if not n:
        return None
    first, second = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    observed = n * sum(x == y for x, y in pairs)
    expected = sum(count * second[answer] for answer, count in first.items())
    return None if expected == n * n else (observed - expected) / (n * n - expected)


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None
