"""Lists of answers: several values, several unknowns, several conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from corl.answers.expressions import is_constant
from corl.answers.forms import EMPTY, build, element, set_key, tuple_key
from corl.answers.lexer import Token
from corl.answers.spans import Span, intersect
from corl.answers.structure import trim
from corl.answers.typed import Typed, Typer, unite

__all__ = ["listing"]

MAX_PARTS: Final = 10_000
MAX_RELATIONS: Final = 200
MAX_RANGES: Final = 40  # conditions on one unknown
MAX_TEXTS: Final = 64  # members in words; more of them are prose
_OR: Final = frozenset({"or", "lor", "或"})
_AND: Final = frozenset({"and", "land", "和"})


def listing(parts: Sequence[list[Token]], joins: Sequence[Token], typer: Typer) -> Typed | None:
    """The typed form of the parts of a list; None when some part cannot be typed."""
    if len(parts) > MAX_PARTS:
        return None
    typed: list[Typed] = []
    texts = relations = 0
    for part in parts:
        part = trim(part)
        if not part:
            continue
        one = typer.member(part)
        if one is None:
            return None
        typed.append(one)
        texts += one.key.kind == "text"
        relations += one.relation
        if texts > MAX_TEXTS or relations > MAX_RELATIONS:
            return None
    if not typed:
        return None
    words = {join.text.lower() for join in joins}
    if any(one.key.kind == "text" and one.key.form == "..." for one in typed):
        return Typed(build("seq", ",".join(element(one.key) for one in typed)), name=typed[0].name)
    if len(typed) == 1:
        return typed[0]
    if any(one.key.kind == "text" and not one.relation for one in typed) and not all(
        one.key.kind == "text" and one.key.form.count(" ") < 2 for one in typed
    ):
        return None  # prose with commas
    if any(one.relation for one in typed):
        return _relations(typed, words)
    if words & {"lor", "land"}:
        return None  # a formula of logic
    if _are_spans(typed, words):
        return unite([span for one in typed for span in one.spans or ()])
    points = (
        [Span(one.key, True, one.key, True) for one in typed] if all(is_constant(one.key) for one in typed) else None
    )
    members = [key for one in typed for key in (one.members or (one.key,))]
    return Typed(set_key(members, distinct=False), spans=tuple(points) if points else None)


def _are_spans(typed: Sequence[Typed], words: set[str]) -> bool:
    """Whether intervals are listed, rather than pairs: one is half-open or unbounded, or none is a pair of numbers."""
    if not all(one.spans and one.key.kind in ("interval", "tuple", "union") for one in typed):
        return False
    if any(one.key.kind != "tuple" or "inf:" in one.key.form for one in typed):
        return True
    return bool(words & _OR)


def _relations(typed: list[Typed], words: set[str]) -> Typed | None:
    names = [one.name for one in typed]
    first = typed[0]
    if first.relation and first.name and not any(one.relation for one in typed[1:]):
        return replace(  # n = 2, 3, 4
            Typed(set_key((one.key for one in typed), distinct=False)), name=first.name, relation=True
        )
    if all(map(_is_value, typed)):
        if len(set(names)) == 1:
            return Typed(set_key((one.key for one in typed), distinct=True), name=names[0], relation=True)
        if len(set(names)) == len(names):
            ordered = sorted(typed, key=lambda one: one.name or "")
            form = ",".join(f"{one.name}={element(one.key)}" for one in ordered)
            bare = tuple_key(one.key for one in ordered)
            return Typed(replace(build("assign", form), bare=bare), relation=True)
    if all(one.relation and one.name and one.spans is not None for one in typed) and len(set(names)) == 1:
        return _ranges(typed, words) if len(typed) <= MAX_RANGES else None
    forms = sorted({f"{one.name}@{element(one.key)}" if one.name else element(one.key) for one in typed})
    plain = [one for one in typed if not one.relation]
    key = build("system", ",".join(forms))
    return Typed(replace(key, bare=plain[0].key) if len(plain) == 1 else key, relation=True)


def _is_value(one: Typed) -> bool:
    """Whether a relation gives its unknown a value rather than a range."""
    points = one.spans is None or all(span.low == span.high for span in one.spans)
    return one.relation and bool(one.name) and points and one.key.kind not in ("text", "mod", "eq", "ineq")


def _ranges(typed: list[Typed], words: set[str]) -> Typed:
    """Conditions on one unknown: with "or" a union, with "and" an intersection, with commas what is not trivial."""
    name = typed[0].name
    union = unite([span for one in typed for span in one.spans or ()])
    common = typed[0].spans
    for one in typed[1:]:
        common = intersect(common, one.spans or ()) if common is not None else None
    if words & _OR or common is None or (not common and not words & _AND):
        return replace(union, name=name, relation=True)
    met = unite(common) if common else Typed(EMPTY, spans=())
    return replace(met, name=name, relation=True)
