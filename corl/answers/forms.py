"""Canonical forms of composite answers, and the intermediate result that carries them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from corl.answers.keys import AnswerKey

__all__ = ["Span", "Typed", "build", "element", "set_key", "span_key", "tuple_key", "unite"]

MAX_FORM: Final = 512


@dataclass(frozen=True, slots=True)
class Span:
    """An interval between two keys; an end without a numeric value (a symbol) cannot be ordered."""

    low: AnswerKey
    low_closed: bool
    high: AnswerKey
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed piece of an answer, with what its key leaves out.

    ``name`` is the unknown whose value or range it is (``x`` in ``x = 5``), ``relation`` whether it is one (an
    inequality, an equation), ``spans`` the subset of the real line that it is, where it is one.
    """

    key: AnswerKey
    name: str | None = None
    relation: bool = False
    spans: tuple[Span, ...] | None = None


def build(kind: str, form: str) -> AnswerKey:
    """A key, its form hashed when it is long."""
    return AnswerKey(kind, form if len(form) <= MAX_FORM else f"#{sha256(form.encode()).hexdigest()}")


def element(key: AnswerKey) -> str:
    """A key as part of a composite form; free text is quoted, so that no text can imitate a bracket or comma."""
    if key.kind == "q":
        return key.form
    return f"{key.kind}:{quote(key.form, safe=' ') if key.kind in ('text', 'raw') else key.form}"


def set_key(keys: Iterable[AnswerKey], *, distinct: bool) -> AnswerKey:
    """An unordered collection; one member alone is that member."""
    members = sorted(map(element, keys_list)) if (keys_list := list(keys)) else []
    if distinct:
        members = list(dict.fromkeys(members))
    if len(members) == 1:
        return replace(next(key for key in keys_list if element(key) == members[0]))
    return build("set", ",".join(members))


def tuple_key(keys: Iterable[AnswerKey]) -> AnswerKey:
    return build("tuple", f"({','.join(map(element, keys))})")


def _is_infinite(key: AnswerKey, sign: str) -> bool:
    return key.kind == "inf" and key.form == sign


def span_key(span: Span) -> AnswerKey:
    """An interval's key. An open one between two ends is written, and keyed, as a pair is."""
    if span.low == span.high and span.low_closed and span.high_closed:
        return span.low
    opener = "[" if span.low_closed else "("
    closer = "]" if span.high_closed else ")"
    kind = "tuple" if opener == "(" and closer == ")" else "interval"
    return build(kind, f"{opener}{element(span.low)},{element(span.high)}{closer}")


_LOWEST: Final = Decimal("-Infinity")
_HIGHEST: Final = Decimal("Infinity")


def number(key: AnswerKey) -> Decimal | None:
    """An end as a number to order by."""
    if key.kind == "inf":
        return _LOWEST if key.form == "-" else _HIGHEST
    return key.approx


def merge(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in order, overlapping and touching ones joined; as given where an end has no numeric value."""
    ends = [(number(span.low), number(span.high)) for span in spans]
    if any(low is None or high is None for low, high in ends):
        return tuple(sorted(set(spans), key=lambda span: span_key(span).canonical))
    ordered = sorted(spans, key=lambda span: (number(span.low), not span.low_closed, number(span.high)))
    merged: list[Span] = []
    for span in ordered:
        if merged:
            last = merged[-1]
            high, low = number(last.high), number(span.low)
            if low < high or (low == high and (last.high_closed or span.low_closed)):  # type: ignore[operator]
                top = number(span.high)
                if (top, span.high_closed) > (high, last.high_closed):  # type: ignore[operator]
                    merged[-1] = Span(last.low, last.low_closed, span.high, span.high_closed)
                continue
        merged.append(span)
    return tuple(merged)


def unite(spans: Sequence[Span]) -> Typed:
    """The union of spans, as an interval, a finite set or a union key."""
    merged = merge(spans)
    if all(span.low == span.high for span in merged):
        return Typed(set_key((span.low for span in merged), distinct=True), spans=merged)
    if len(merged) == 1:
        return Typed(span_key(merged[0]), spans=merged)
    return Typed(build("union", ",".join(element(span_key(span)) for span in merged)), spans=merged)


def intersect(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...] | None:
    """The common part, or None where an end has no numeric value."""
    common: list[Span] = []
    for a in left:
        for b in right:
            values = [number(key) for key in (a.low, a.high, b.low, b.high)]
            if any(value is None for value in values):
                return None
            low = max(
                (values[0], not a.low_closed, a.low), (values[2], not b.low_closed, b.low), key=lambda end: end[:2]
            )
            high = min((values[1], a.high_closed, a.high), (values[3], b.high_closed, b.high), key=lambda end: end[:2])
            if low[0] < high[0] or (low[0] == high[0] and not low[1] and high[1]):  # type: ignore[operator]
                common.append(Span(low[2], not low[1], high[2], high[1]))
    return tuple(common)


def remove_points(spans: Sequence[Span], points: Sequence[AnswerKey]) -> tuple[Span, ...] | None:
    """Spans without these points, or None where an end has no numeric value."""
    remaining: tuple[Span, ...] | None = tuple(spans)
    for point in points:
        hole = [Span(INFINITE_LOW, False, point, False), Span(point, False, INFINITE_HIGH, False)]
        remaining = intersect(remaining, hole) if remaining is not None else None
    return remaining


INFINITE_LOW: Final = AnswerKey("inf", "-")
INFINITE_HIGH: Final = AnswerKey("inf", "+")
REALS: Final = Span(INFINITE_LOW, False, INFINITE_HIGH, False)
EMPTY: Final = AnswerKey("set", "")
