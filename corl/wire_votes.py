"""Votes and histograms as they go over the wire, and back."""

from __future__ import annotations

from corl import wire
from corl.answers import AnswerKey
from corl.histogram import Histogram
from corl.plurality import Number, RunnerUp, Spelling, Vote

__all__ = ["from_wire", "histogram_from_wire", "to_wire"]


def to_wire(
    vote: Vote,
    *,
    source: wire.VoteSource | None = None,
    weights: wire.WeightsTag | None = None,
    histogram: Histogram | None = None,
) -> wire.Vote:
    """A vote with where it comes from; with its histogram if given.

    Keys are in their stable string form, the winner's own first, the others sorted.

    Raises:
        ValueError: the vote or the histogram was counted with weights that are not whole numbers.
    """
    keys = sorted(str(key) for key in vote.keys if key != vote.key)
    second = vote.runner_up
    return wire.Vote(
        status=vote.status,
        answer=vote.answer,
        key=None if vote.key is None else str(vote.key),
        keys=keys if vote.key is None else [str(vote.key), *keys],
        count=_whole(vote.count),
        parsed=_whole(vote.parsed),
        total=_whole(vote.total),
        share=vote.share,
        runner_up=None
        if second is None
        else wire.RunnerUp(answer=second.answer, key=str(second.key), count=_whole(second.count)),
        source=source,
        weights=weights,
        histogram=None
        if histogram is None
        else [wire.AnswerCount(answer=s.answer, key=str(s.key), count=_whole(s.weight)) for s in histogram.spellings],
    )


def from_wire(vote: wire.Vote) -> Vote:
    """The inverse of `to_wire`, for `corl.votes.attach` and `corl.rewards`; the histogram is read apart.

    Raises:
        ValueError: a key is not one that `str(key)` writes, or the fields contradict each other.
    """
    key = None if vote.key is None else AnswerKey.parse(vote.key)
    keys = frozenset(AnswerKey.parse(text) for text in vote.keys)
    if vote.status in ("ok", "weak"):
        if vote.answer is None or key is None or key not in keys:
            raise ValueError(f"vote is {vote.status!r}: expected answer, key, and keys that hold the key")
        if not 0 < vote.count <= vote.parsed <= vote.total:
            raise ValueError(
                f"vote is {vote.status!r}: expected 0 < count <= parsed <= total, "
                f"got {vote.count}, {vote.parsed}, {vote.total}"
            )
    elif keys or key is not None:
        raise ValueError(f"vote is {vote.status!r}: expected no key, got {vote.key or vote.keys!r}")
    second = vote.runner_up
    return Vote(
        status=vote.status,
        answer=vote.answer,
        key=key,
        keys=keys,
        count=vote.count,
        parsed=vote.parsed,
        total=vote.total,
        share=vote.share,
        runner_up=None if second is None else RunnerUp(second.answer, AnswerKey.parse(second.key), second.count),
    )


def histogram_from_wire(vote: wire.Vote) -> Histogram | None:
    """The histogram that came with a vote, if it was asked for. Positions are those of the entries, order kept.

    Raises:
        ValueError: a key is malformed, or the counts do not add up to the vote's `parsed`.
    """
    if vote.histogram is None:
        return None
    if sum(entry.count for entry in vote.histogram) != vote.parsed:
        raise ValueError(f"histogram: counts add up to {sum(e.count for e in vote.histogram)}, parsed is {vote.parsed}")
    spellings = [
        Spelling(entry.answer, AnswerKey.parse(entry.key), entry.count, entry.count, position)
        for position, entry in enumerate(vote.histogram)
    ]
    return Histogram(tuple(spellings), vote.total)


def _whole(number: Number) -> int:
    if not isinstance(number, int):
        raise ValueError(f"count {number}: only votes in whole numbers go over the wire")
    return number
