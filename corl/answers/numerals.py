"""Written numbers as exact rationals: decimals, scientific notation, repeating decimals, number words."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, NamedTuple

from corl.answers.arith import MAX_BITS, TooHard, exact

__all__ = ["NUMBER_WORDS", "SCALES", "Literal", "literal", "periodic", "unrounded"]

MAX_DIGITS: Final = 4000  # Python refuses to read integers of more than 4300
_PARTS: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")

SCALES: Final[dict[str, int]] = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
    "万": 10**4,
    "亿": 10**8,
}
_COUNTING: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBER_WORDS: Final[dict[str, int]] = {word: value for value, word in enumerate(_COUNTING.split())} | {
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}


class Literal(NamedTuple):
    """A number as written: its exact value, and the places after the point (None for an integer)."""

    value: int | Fraction
    decimals: int | None


def literal(text: str) -> Literal:
    """The value of digits with an optional point and exponent.

    Raises:
        TooHard: more digits than are worth an exact value.
    """
    if len(text) > MAX_DIGITS:
        raise TooHard("digits")
    if text.isdigit():
        return Literal(int(text), None)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise TooHard("not a numeral")
    whole, places, exponent = parts[1], parts[2] or "", parts[3]
    shift = -len(places)
    if exponent is not None:
        if len(exponent) > 6:
            raise TooHard("exponent")
        shift += int(exponent)
    if abs(shift) * 3 > MAX_BITS:
        raise TooHard("exponent")
    digits = int(whole + places or "0")
    if shift >= 0:
        return Literal(exact(digits * 10**shift), None)
    return Literal(exact(Fraction(digits, 10**-shift)), -shift)


def periodic(text: str) -> Fraction:
    r"""A repeating decimal: ``0.1\overline{6}``, ``0.\dot{1}4285\dot{7}``, ``0.(3)``."""
    whole, _, rest = text.partition(".")
    if "\\dot" in rest:
        before, _, tail = rest.partition("\\dot")
        repeated = "".join(re.findall("[0-9]", tail))
    elif "(" in rest:
        before, _, tail = rest.partition("(")
        repeated = tail[:-1]
    else:
        before, _, tail = rest.partition("\\")
        repeated = "".join(re.findall("[0-9]", tail))
    if len(whole) + len(before) + len(repeated) > MAX_DIGITS // 4:
        raise TooHard("digits")
    scale = 10 ** len(before)
    return Fraction(int(whole + before or "0"), scale) + Fraction(int(repeated), scale * (10 ** len(repeated) - 1))


def unrounded(text: str) -> Fraction | None:
    """What a decimal with dots after it goes on to, if its digits visibly repeat: ``0.333...``, ``0.1212...``."""
    whole, _, places = text.partition(".")
    if not 3 <= len(places) <= 60 or not whole.isdigit() or not places.isdigit() or len(whole) > 60:
        return None
    for period in range(1, len(places) // 2 + 1):
        for start in range(len(places) - 2 * period + 1):
            tail = places[start:]
            block = tail[:period]
            if len(tail) < (3 if period == 1 else 2 * period) or len(tail) < start:
                break
            if all(digit == block[i % period] for i, digit in enumerate(tail)):
                if block == "0" * period:
                    return None
                return periodic(f"{whole}.{places[:start]}({block})")
    return None
