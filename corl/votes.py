"""Votes: what the plurality of a group of answers says, and whether another answer agrees with it.

Two answers agree when their keys are equal (`corl.answers.key`), or when their classes were joined by one of the few
relations of `corl.attachment`, once, after counting. `Vote.keys` holds the keys of the winner's classes and `attach`
decides membership, so a vote and the rewards for it cannot use two different relations: of the answers that were
counted, exactly those that `attach` accepts make up `Vote.count`.

The result does not depend on the order of the answers, except under `ties="first"`, the rule of the paper's released
trainer (arXiv 2608.17253), which lets the answer that stands first win a tie.
"""

from __future__ import annotations

from collections.abc import Iterable

from corl.answers import Options
from corl.histogram import Histogram
from corl.plurality import Number, RunnerUp, Spelling, Ties, Vote, VoteStatus, attach

__all__ = ["Histogram", "RunnerUp", "Spelling", "Ties", "Vote", "VoteStatus", "attach", "tally"]


def tally(
    answers: Iterable[str | None],
    *,
    task: str = "math",
    options: Options | None = None,
    threshold: float = 0.0,
    ties: Ties = "abstain",
    min_parsed: int = 2,
    weights: Iterable[float | Number] | None = None,
) -> Vote:
    """The vote of a group of answers, as `corl.answers.extract` returns them (None: no answer).

    Args:
        threshold: least share, in 0..1, that makes a label.
        ties: `abstain` (a tie is no label) or `first` (the answer that stands first wins; the only rule under which
            order matters; the paper's preset uses it with `min_parsed=1`).
        min_parsed: least number of answers (not their weights) that makes a label.
        weights: one per answer, summed as exact rationals.

    Raises:
        ValueError: an argument is out of range, or the task or the options are malformed.
    """
    histogram = Histogram.of(answers, task, options, weights)
    return histogram.tally(threshold=threshold, ties=ties, min_parsed=min_parsed)
