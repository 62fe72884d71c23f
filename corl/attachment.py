"""Which classes of a vote are one answer although their keys differ: rounded decimals, percents, left-out units.

Such relations are not transitive between answers (50% is 0.5 and may be meant by 50; 0.333 and 0.3333 both round 1/3),
so they are never a comparison of two answers. They join *classes* of one histogram, once, after counting, and only
where nothing else in the histogram speaks against it:

*bare*
    A class all of whose spellings leave the same answer over when percent sign, unit, base or left-hand side are
    dropped (`AnswerKey.bare`), and the class of that answer, if all of *its* spellings are written without them.
    `50%` joins `50` unless somebody wrote 0.5; `5` joins `5 cm`. Two readings of one bare answer (`5 m` and `5 cm`
    beside `5`) join nothing.
*rounding*
    A class all of whose spellings are decimals with at least three places, and the one class, written exactly
    somewhere (`1/3`), that rounds to it at the places of every spelling.

A class with two possible partners is left alone. A join has one centre and the classes attached to it, never a chain;
where two joins would make one, that of the class with the higher count, then the smaller key, stands.

**Marks of a class.** Equal keys may be marked differently (`50%` and `0.5` are one key). The class takes a mark only
if all of its spellings carry it (see `class_key`), which depends on the set of spellings and on nothing else. What
made a join possible is then asked of every later answer as well (`belongs`): after `50%` joined `50`, an answer `0.5`
has the key of `50%` but not its sign, and is not in the class; otherwise 0.5 and 50 would both be right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from corl.answers.keys import AnswerKey

__all__ = ["Join", "belongs", "class_key", "joins"]

MIN_PLACES: Final = 3
MAX_PLACES: Final = 600
APPROX_DIGITS: Final = 22
"""Digits of `AnswerKey.approx` that are relied on; it promises 24."""


@dataclass(frozen=True)
class Join:
    """One class attached to another. `rounded`: the attached one is a rounding and never names the answer."""

    attached: AnswerKey
    centre: AnswerKey
    rounded: bool


def class_key(keys: Iterable[AnswerKey]) -> AnswerKey:
    """The key of a class, with the marks that all its spellings share.

    `percent`, `unit` and `bare` are those of all spellings or absent. `decimals` is None if one spelling is exact; else
    the fewest places if those are too few for a rounding, else the most, which asks for the closest rounding.

    Raises:
        ValueError: no keys, or keys that are not equal.
    """
    distinct = {str(key): key for key in keys}
    if not distinct:
        raise ValueError("a class has at least one key")
    first, *others = (distinct[text] for text in sorted(distinct))
    if any(other != first for other in others):
        raise ValueError(f"keys of different classes: {sorted(distinct)}")
    if not others:
        return first
    everyone = (first, *others)
    places = [key.decimals for key in everyone if key.decimals is not None]
    exact = len(places) < len(everyone)
    return replace(
        first,
        percent=all(key.percent for key in everyone),
        unit=first.unit if all(key.unit == first.unit for key in others) else None,
        decimals=None if exact else min(places) if min(places) < MIN_PLACES else max(places),
        bare=first.bare if all(_same_writing(key.bare, first.bare) for key in others) else None,
    )


def joins(classes: Mapping[AnswerKey, tuple[int | Fraction, Iterable[AnswerKey]]]) -> list[Join]:
    """The attachments among the classes of a histogram: key -> (count, the keys of all its spellings).

    Depends on counts and keys only, not on their order. A class is attached at most once, and never to an attached one.
    """
    spelled = {key: list({str(spelling): spelling for spelling in keys}.values()) for key, (_, keys) in classes.items()}
    # Of a pair that could be joined either way, the rounding stands.
    pairs = {(join.attached, join.centre): join for join in (*_bare_joins(spelled), *_rounding_joins(spelled))}
    possible = list(pairs.values())
    partners = Counter(join.attached for join in possible)
    possible.sort(key=lambda join: (-classes[join.attached][0], join.attached.canonical))
    made: dict[AnswerKey, Join] = {}
    centres: set[AnswerKey] = set()
    for join in possible:
        if partners[join.attached] == 1 and join.attached not in centres and join.centre not in made:
            made[join.attached] = join
            centres.add(join.centre)
    return list(made.values())


def belongs(key: AnswerKey, members: Iterable[AnswerKey]) -> bool:
    """Whether an answer's key is in the class whose joined keys (each a `class_key`) are `members`.

    Its key must equal one of them and, where that one was joined, be written so that the join holds for it too.
    """
    others = {member: member for member in members}
    own = others.pop(key, None)
    if own is None:
        return False
    held: list[bool] = []
    for other in others:
        if _rounds(own, other):
            held.append(_rounds(key, other))
        elif own.bare == other:
            held.append(_same_writing(key.bare, own.bare))
        elif other.bare == own and not _rounds(other, own):
            held.append(_same_writing(key, other.bare))
    return not held or any(held)


def _bare_joins(spelled: Mapping[AnswerKey, list[AnswerKey]]) -> Iterator[Join]:
    readings: dict[AnswerKey, list[AnswerKey]] = defaultdict(list)
    for key, spellings in spelled.items():
        for bare in {spelling.bare for spelling in spellings if spelling.bare is not None} - {key}:
            if bare in spelled:
                readings[bare].append(key)
    for bare, found in readings.items():
        if len(found) != 1:
            continue
        (marked,) = found
        left_over = spelled[marked][0].bare
        if all(_same_writing(spelling.bare, left_over) for spelling in spelled[marked]) and all(
            _same_writing(spelling, left_over) for spelling in spelled[bare]
        ):
            yield Join(attached=marked, centre=bare, rounded=False)


def _rounding_joins(spelled: Mapping[AnswerKey, list[AnswerKey]]) -> Iterator[Join]:
    exact = [key for key, spellings in spelled.items() if any(spelling.decimals is None for spelling in spellings)]
    for key, spellings in spelled.items():
        if all(spelling.decimals is not None for spelling in spellings):
            for centre in exact:
                if all(_rounds(spelling, centre) for spelling in spellings):
                    yield Join(attached=key, centre=centre, rounded=True)


def _same_writing(one: AnswerKey | None, other: AnswerKey | None) -> bool:
    """Equal, and with the same percent sign, unit and bare answer: `5` and `5.0`, but not `5` and `5 apples`."""
    if one is None or other is None:
        return one is other
    alike = one == other and one.percent == other.percent and one.unit == other.unit
    return alike and _same_writing(one.bare, other.bare)


def _rounds(decimal: AnswerKey, exact: AnswerKey) -> bool:
    """Whether `decimal` is `exact` rounded to its places; either way at exactly half, since writers differ."""
    places = decimal.decimals
    if places is None or not MIN_PLACES <= places <= MAX_PLACES or decimal.kind != "q" or decimal == exact:
        return False
    value, target = decimal.value, _number(exact, places)
    return value is not None and target is not None and 2 * abs(target - value) * 10**places <= 1


def _number(key: AnswerKey, places: int) -> Fraction | None:
    if key.kind == "q":
        return key.value
    if key.kind != "f" or (approx := key.approx) is None:
        return None
    return Fraction(approx) if places + max(approx.adjusted() + 1, 0) <= APPROX_DIGITS else None
