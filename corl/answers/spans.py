"""Subsets of the real line: intervals, their unions, intersections and differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final

from corl.answers.forms import build, element, set_key
from corl.answers.keys import AnswerKey

__all__ = ["REALS", "Span", "intersect", "line_key", "merge", "remove_points", "span_key"]

MAX_PAIRS: Final = 4000  # of spans met with spans; past it an answer keeps its text


@dataclass(frozen=True, slots=True)
class Span:
    """An interval between two keys; an end without a numeric value (a symbol) cannot be ordered."""

    low: AnswerKey
    low_closed: bool
    high: AnswerKey
    high_closed: bool


INFINITE_LOW: Final = AnswerKey("inf", "-")
INFINITE_HIGH: Final = AnswerKey("inf", "+")
REALS: Final = Span(INFINITE_LOW, False, INFINITE_HIGH, False)


def span_key(span: Span) -> AnswerKey:
    """An interval's key. An open one between two ends is written, and keyed, as a pair is."""
    if span.low == span.high and span.low_closed and span.high_closed:
        return span.low
    opener = "[" if span.low_closed else "("
    closer = "]" if span.high_closed else ")"
    kind = "tuple" if opener == "(" and closer == ")" else "interval"
    return build(kind, f"{opener}{element(span.low)},{element(span.high)}{closer}")


def line_key(merged: Sequence[Span]) -> AnswerKey:
    """The key of merged spans: an interval, a finite set, or a union."""
    if all(span.low == span.high for span in merged):
        return set_key((span.low for span in merged), distinct=True)
    if len(merged) == 1:
        return span_key(merged[0])
    return build("union", ",".join(element(span_key(span)) for span in merged))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A span with its ends as numbers. Of two ends at one number, the flag says which lies further right."""

    low: tuple[Decimal, bool]  # with "open": (2 begins after [2
    high: tuple[Decimal, bool]  # with "closed": 2] ends after 2)
    span: Span


def _number(key: AnswerKey) -> Decimal | None:
    if key.kind == "inf":
        return Decimal("-Infinity" if key.form == "-" else "Infinity")
    return key.approx


def _place(spans: Sequence[Span]) -> list[_Placed] | None:
    """Spans with numbers for their ends, or None where an end is a symbol."""
    placed: list[_Placed] = []
    for span in spans:
        low, high = _number(span.low), _number(span.high)
        if low is None or high is None:
            return None
        placed.append(_Placed((low, not span.low_closed), (high, span.high_closed), span))
    return placed


def merge(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in order, overlapping and touching ones joined; only sorted where an end has no numeric value."""
    placed = _place(spans)
    if placed is None:
        return tuple(sorted(set(spans), key=lambda span: span_key(span).canonical))
    merged: list[_Placed] = []
    for one in sorted(placed, key=lambda one: (one.low, one.high)):
        if merged:
            last = merged[-1]
            touching = one.low[0] == last.high[0] and (last.high[1] or not one.low[1])
            if one.low[0] < last.high[0] or touching:
                if one.high > last.high:
                    ends = last.span.low, last.span.low_closed, one.span.high, one.span.high_closed
                    merged[-1] = _Placed(last.low, one.high, Span(*ends))
                continue
        merged.append(one)
    return tuple(one.span for one in merged)


def intersect(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...] | None:
    """The common part; None where an end has no numeric value, or there are too many spans."""
    ours, theirs = _place(left), _place(right)
    if ours is None or theirs is None or len(ours) * len(theirs) > MAX_PAIRS:
        return None
    common: list[Span] = []
    for a in ours:
        for b in theirs:
            low, high = max(a, b, key=lambda one: one.low), min(a, b, key=lambda one: one.high)
            if low.low[0] < high.high[0] or (low.low[0] == high.high[0] and not low.low[1] and high.high[1]):
                common.append(Span(low.span.low, low.span.low_closed, high.span.high, high.span.high_closed))
    return tuple(common)


def remove_points(spans: Sequence[Span], points: Sequence[AnswerKey]) -> tuple[Span, ...] | None:
    """Spans without these points; None where an end has no numeric value, or there are too many points."""
    ordered = merge([Span(point, True, point, True) for point in points])
    ends = [INFINITE_LOW, *(span.low for span in ordered), INFINITE_HIGH]
    holes = [Span(low, False, high, False) for low, high in pairwise(ends)]
    return intersect(spans, holes)
