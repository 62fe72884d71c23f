"""Single values with something written beside them: units, percent, money, bases, times, ratios, number words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm
from typing import Final

from corl.answers.arith import Work
from corl.answers.evaluate import rational_form
from corl.answers.expressions import expression_key, is_value, node_key, try_parse
from corl.answers.forms import build, element
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token
from corl.answers.numerals import NUMBER_WORDS, SCALES, literal
from corl.answers.structure import split
from corl.answers.units import CENT, Unit, currency_of, read_unit
from corl.answers.vocabulary import words

__all__ = ["quantity_key"]

_PERCENT: Final = words("percent pct percentage")
_NOT_NOUNS: Final = words(
    "or and to is if when not than more less at least most the a an of in for per from by with mod base are then "
    "where because since so each but both either there that this which who what how all no only yes remainder R"
)
_BASES: Final = {
    "two": 2, "binary": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "octal": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16, "hexadecimal": 16, "hex": 16,
}  # fmt: skip
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_NOUNS: Final = 4
_TAILS: Final = frozenset({("sym", "degree"), ("sym", "ordinal"), ("fn", "min")})


def quantity_key(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """The key of a value with a mark, unit, base or clock notation; None for what is none of these."""
    if not 1 < len(tokens) <= 200:
        return _number_words(tokens, work)
    for read in (_colons, _money, _percent, _base, _durations, _united, _number_words):
        found = read(tokens, work)
        if found is not None:
            return found
    return None


def _value(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """The key of a plain value: a number or a constant or symbolic expression."""
    if not tokens:
        return None
    found = expression_key(tokens, work)
    return found if found is not None and found.kind in ("q", "f", "c") else None


# -- marks -----------------------------------------------------------------------------------------------------------


def _money(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    currency = currency_of(tokens[0])
    if currency is not None:
        dot = tokens[1].text == "."
        tokens = [Token("money", currency, False), *tokens[2 if dot else 1 :]]
    rest = [token for token in tokens if token.kind != "money"]
    if len(rest) != len(tokens) - 1:
        return None
    if len(rest) > 1 and rest[0].text in ("US", "USD", "A", "C") and rest[0].kind in ("word", "letter", "text"):
        rest = rest[1:]
    sign = next(token.text for token in tokens if token.kind == "money")
    inner = _value(rest, work) or quantity_key(rest, work)
    if inner is None or not is_value(inner) or inner.kind == "quantity":
        return None
    return _with_unit(inner, CENT, rest, work) if sign == "¢" else replace(inner, unit=sign)


def _percent(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    rest = list(tokens)
    if (rest[-1].kind == "op" and rest[-1].text == "%") or (
        rest[-1].kind in ("text", "word") and rest[-1].text.lower() in _PERCENT
    ):
        rest = rest[:-1]
    elif [token.text.lower() for token in rest[-2:]] == ["per", "cent"]:
        rest = rest[:-2]
    else:
        return None
    bare = _value(rest, work)
    if bare is None:
        return None
    return _scaled(bare, rest, Fraction(1, 100), work, percent=True)


def _scaled(
    bare: AnswerKey, tokens: Sequence[Token], factor: Fraction, work: Work, *, percent: bool = False
) -> AnswerKey | None:
    """A value in hundredths: its key, and the number as written as its bare key."""
    if bare.value is not None:
        places = 2 + (bare.decimals or 0)
        return AnswerKey("q", rational_form(bare.value * factor), percent=percent, decimals=places, bare=bare)
    scaled = _times(tokens, factor, work)
    return replace(scaled, percent=percent, bare=bare) if scaled is not None else None


def _times(tokens: Sequence[Token], factor: Fraction, work: Work) -> AnswerKey | None:
    node = try_parse(tokens)
    return node_key(("*", [("q", factor), node]), work) if node is not None else None


# -- units -----------------------------------------------------------------------------------------------------------


def _with_unit(bare: AnswerKey, unit: Unit, tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    if unit.name == "cent":
        scaled = _scaled(bare, tokens, unit.factor, work)
        return replace(scaled, unit="cent") if scaled is not None else None
    if not unit.signature:
        return replace(bare, unit=unit.name)
    if bare.value is not None:
        return replace(
            build("quantity", f"{rational_form(bare.value * unit.factor)}|{unit.signature}"), unit=unit.name, bare=bare
        )
    scaled = bare if unit.factor == 1 else _times(tokens, unit.factor, work)
    if scaled is None:
        return None
    return replace(build("quantity", f"{scaled.form}|{unit.signature}"), unit=unit.name, bare=bare)


def _united(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """A value and the unit, scale word, ordinal or counted noun after it."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth or not at:
            continue
        if token.kind in ("text", "word", "letter") or (token.kind, token.text) in _TAILS:
            found = _headed(tokens[:at], tokens[at:], work)
            if found is not None:
                return found
    return None


def _headed(head: Sequence[Token], tail: Sequence[Token], work: Work) -> AnswerKey | None:
    if tail[0].kind == "sym" and tail[0].text == "ordinal":
        whole = _value(head, work)
        if whole is None or whole.value is None or not _all_words(tail[1:]):
            return None
        return replace(whole, unit="th")
    scale = SCALES.get(tail[0].text.lower())
    if scale is not None and tail[0].kind != "letter":
        number = _value(head, work)
        if number is None or number.value is None:
            return None
        scaled = AnswerKey("q", rational_form(number.value * scale))
        if len(tail) == 1:
            return scaled
        return _headed_unit(scaled, [Token("num", rational_form(number.value * scale), False)], tail[1:], work)
    unit = read_unit(tail)
    if unit is None and not (_all_words(tail) and _is_count(head)):
        return None
    if tail[0].kind == "sym" and _has_letters(head):
        return None  # a degree sign after a symbol belongs to the expression
    number = _value(head, work)
    return None if number is None else _headed_unit(number, head, tail, work)


def _headed_unit(number: AnswerKey, head: Sequence[Token], tail: Sequence[Token], work: Work) -> AnswerKey | None:
    unit = read_unit(tail)
    if unit is not None:
        return _with_unit(number, unit, head, work)
    if _all_words(tail) and _is_count(head):
        return replace(number, unit=" ".join(token.text.lower() for token in tail))
    return None


def _has_letters(tokens: Sequence[Token]) -> bool:
    return any(token.kind in ("letter", "word", "text", "fn") and token.text != "pi" for token in tokens)


def _is_count(tokens: Sequence[Token]) -> bool:
    return all(
        token.kind in ("num", "open", "close", "op") or token.text in ("frac", "dfrac", "tfrac") for token in tokens
    )


def _all_words(tokens: Sequence[Token]) -> bool:
    """Whether these read as a counted noun: a few plain words."""
    return len(tokens) <= MAX_NOUNS and all(
        token.kind in ("text", "word") and len(token.text) > 2 and token.text.lower() not in _NOT_NOUNS
        for token in tokens
    )


def _durations(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """Several units of one dimension: ``2 hours and 30 minutes``, ``5 ft 3 in``."""
    groups: list[list[Token]] = []
    for token in tokens:
        if token.kind == "num" and (not groups or groups[-1][-1].kind != "num"):
            groups.append([])
        elif not groups:
            return None
        groups[-1].append(token)
    if not 2 <= len(groups) <= 4:
        return None
    total, signatures, names = Fraction(0), set[str](), list[str]()
    for group in groups:
        tail = group[1:]
        if tail and (tail[-1].text == "and" or tail[-1].text == ","):
            tail = tail[:-1]
        unit = read_unit(tail)
        if unit is None or not unit.signature or group[0].kind != "num" or len(group[0].text) > 50:
            return None
        total += literal(group[0].text).value * unit.factor
        signatures.add(unit.signature)
        names.append(unit.name)
    if len(signatures) > 1 or len(set(names)) < len(names):
        return None
    return replace(build("quantity", f"{rational_form(total)}|{signatures.pop()}"), unit=" ".join(names))


# -- bases, clocks, ratios -------------------------------------------------------------------------------------------


def _base(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """Digits in a named base: ``52_8``, ``(52)_{8}``, ``52 base 8``."""
    if len(tokens) > 80:
        return None
    at = next((i for i, token in enumerate(tokens) if token.text in ("_", "base")), None)
    if not at:
        return None
    head, tail = list(tokens[:at]), [token for token in tokens[at + 1 :] if token.kind not in ("open", "close")]
    if head[-1].text == "(" or head[-1].text == "in":
        head = head[:-1]
    if head and head[0].text == "(" and head[-1].text == ")":
        head = head[1:-1]
    if tail and tail[0].text == "base":
        tail = tail[1:]
    if len(tail) != 1 or not head or any(token.kind not in ("num", "letter", "word", "text") for token in head):
        return None
    name = tail[0].text.lower()
    base = _BASES.get(name) or (int(name) if name.isdigit() and len(name) < 3 else 0)
    digits = "".join(token.text for token in head).lower()
    if not 2 <= base <= 36 or not digits.isascii() or not digits.isalnum():
        return None
    if not any(map(str.isdigit, digits)) and (base != 16 or len(digits) < 2):
        return None  # a symbol with an index
    if any(_DIGITS.index(digit) >= base for digit in digits):
        return None
    digits = digits.lstrip("0") or "0"
    if base == 10:
        return AnswerKey("q", digits)
    bare = AnswerKey("q", digits) if digits.isdigit() else AnswerKey("text", digits)
    return replace(build("base", f"{digits}_{base}"), bare=bare)


def _colons(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    half = ""
    rest = list(tokens)
    while rest and (rest[-1].kind in ("letter", "word", "text") or rest[-1].text == "."):
        half = rest.pop().text.lower().replace(".", "") + half
    if half not in ("", "am", "pm"):
        return None
    parts, found = split(rest, lambda token: token.kind == "sep" and token.text == ":")
    if not found and not half:
        return None
    texts = [part[0].text if len(part) == 1 and part[0].kind == "num" else "" for part in parts]
    if _is_clock(texts, half):
        hour, minutes = int(texts[0]), ":".join(texts[1:] or ["00"])
        if not half:
            return AnswerKey("time", f"{hour}:{minutes}")
        full = hour % 12 + (12 if half == "pm" else 0)
        return AnswerKey("time", f"{full}:{minutes}", unit=half, bare=AnswerKey("time", f"{hour}:{minutes}"))
    return _ratio(parts, work) if not half else None


def _is_clock(texts: Sequence[str], half: str) -> bool:
    if len(texts) > 3 or not all(text.isdigit() for text in texts) or len(texts[0]) > 2:
        return False
    if len(texts) == 1:
        return bool(half) and 1 <= int(texts[0]) <= 12
    return int(texts[0]) <= 24 and all(len(text) == 2 and int(text) < 60 for text in texts[1:])


def _ratio(parts: Sequence[Sequence[Token]], work: Work) -> AnswerKey | None:
    keys = [_value(part, work) for part in parts]
    values = [key.value if key is not None else None for key in keys]
    if any(key is None for key in keys):
        return None
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not all(numbers):
        return build("ratio", ":".join(element(key) for key in keys if key is not None))
    scale = Fraction(lcm(*(value.denominator for value in numbers)), 1)
    whole = [int(value * scale) for value in numbers]
    divisor = gcd(*whole) * (-1 if whole[0] < 0 else 1)
    form = ":".join(str(value // divisor) for value in whole)
    if len(whole) == 2:
        return replace(build("ratio", form), bare=AnswerKey("q", rational_form(Fraction(*whole))))
    return build("ratio", form)


def _number_words(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """Numbers spelt out, up to the millions: ``twenty-five``, ``two hundred``."""
    if not 0 < len(tokens) <= 8:
        return None
    total = current = 0
    for token in tokens:
        word = token.text.lower()
        if token.kind == "op" and word == "-":
            continue
        if token.kind not in ("text", "word"):
            return None
        if word in NUMBER_WORDS:
            current += NUMBER_WORDS[word]
        elif word == "hundred":
            current = (current or 1) * 100
        elif word in SCALES and current:
            total, current = total + current * SCALES[word], 0
        elif word != "and" or not total + current:
            return None
    return AnswerKey("q", str(total + current))
