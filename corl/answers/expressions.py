"""Keys of plain expressions: exact rationals, fingerprints, plus-minus, infinities, vectors in i, j, k."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from corl.answers import arith
from corl.answers.arith import TooHard, Undefined, Value, Work
from corl.answers.cursor import NotMath
from corl.answers.evaluate import evaluate, fingerprint, free_symbols, rational_form, spell_tree
from corl.answers.forms import build, tuple_key
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token
from corl.answers.numerals import literal, periodic, unrounded
from corl.answers.syntax import Node, parse_expression

__all__ = ["expression_key", "is_constant", "is_value", "node_key", "plus_minus", "try_parse"]

_INFINITE: Final[Node] = ("inf",)
_AXES: Final = ("i", "j", "k")
_FAILURES: Final = (TooHard, Undefined, OverflowError, ValueError, ZeroDivisionError)


def is_value(key: AnswerKey) -> bool:
    """Whether a key is a number or an expression."""
    return key.kind in ("q", "f", "c", "quantity")


def is_constant(key: AnswerKey) -> bool:
    """Whether a key has no symbol in it, as far as its form tells."""
    return key.kind in ("q", "c", "inf", "quantity") or (key.kind == "f" and ";" not in key.form)


def try_parse(tokens: Sequence[Token]) -> Node | None:
    """The tree of an expression; None when it is none, or too deep."""
    try:
        return parse_expression(list(tokens))
    except (NotMath, TooHard):
        return None


def expression_key(tokens: Sequence[Token], work: Work) -> AnswerKey | None:
    """The key of an expression, with its decimals where it is a decimal literal; None when it is no expression."""
    sign, rest = "", tokens
    while len(rest) > 1 and rest[0].kind == "op" and rest[0].text in ("+", "-"):
        sign, rest = ("-" if (rest[0].text == "-") != (sign == "-") else ""), rest[1:]
    if rest and rest[0].kind in ("num", "periodic") and (len(rest) == 1 or (len(rest) == 2 and rest[1].kind == "dots")):
        return _literal(sign, rest)
    try:
        node = parse_expression(list(tokens))
    except NotMath:
        return None
    except TooHard:
        return build("raw", " ".join(token.text for token in tokens))
    return node_key(node, work)


def _literal(sign: str, tokens: Sequence[Token]) -> AnswerKey | None:
    text = tokens[0].text
    try:
        if tokens[0].kind == "periodic":
            value: int | Fraction = periodic(text)
            return AnswerKey("q", rational_form(-value if sign else value))
        if len(tokens) == 2:
            endless = unrounded(text)
            if endless is not None:
                return AnswerKey("q", rational_form(-endless if sign else endless))
            if "." not in text:
                return None
        value, decimals = literal(text)
    except TooHard:
        return build("raw", sign + (text.lstrip("0") or "0"))
    return AnswerKey("q", rational_form(-value if sign else value), decimals=decimals)


def node_key(node: Node, work: Work) -> AnswerKey:
    """The key of an expression tree; past the limits, its text."""
    if node == _INFINITE:
        return AnswerKey("inf", "+")
    if node == ("neg", _INFINITE):
        return AnswerKey("inf", "-")
    try:
        symbols = free_symbols(node)
        if symbols and symbols <= {"j", "k"}:
            vector = _vector(node, work)
            if vector is not None:
                return vector
        return build(*fingerprint(node, work))
    except _FAILURES:
        return build("raw", spell_tree(node))


def plus_minus(tokens: Sequence[Token], work: Work) -> tuple[AnswerKey, ...] | None:
    """The two values of an expression with plus-minus signs, which take one sign together; None for any other."""
    if not any(token.kind == "op" and token.text in ("+-", "-+") for token in tokens):
        return None
    node = try_parse(tokens)
    if node is None:
        return None
    try:
        return tuple(build(*fingerprint(node, work, choice)) for choice in (1, -1))
    except _FAILURES:
        return (build("raw", spell_tree(node)),)


def _vector(node: Node, work: Work) -> AnswerKey | None:
    """``3i+4j`` as the vector (3, 4): linear in two or three of the unit vectors, with nothing left over."""
    used = [axis for axis in _AXES if ("s", axis) in _leaves(node)]
    if len(used) < 2:
        return None
    axes = _AXES if "k" in used else _AXES[:2]

    def at(*values: int) -> Value:
        return evaluate(node, dict(zip(_AXES, values, strict=True)), work)

    try:
        units = [at(*(int(axis == other) for other in _AXES)) for axis in axes]
        if not arith.is_zero(at(0, 0, 0)):
            return None
        expected: Value = 0
        for factor, unit in zip((2, 3, 5), units, strict=False):
            expected = arith.add(expected, arith.mul(factor, unit))
        if not arith.is_zero(arith.add(at(2, 3, 5), arith.neg(expected))):
            return None
    except Undefined:
        return None
    return tuple_key(_number_key(unit) for unit in units)


def _leaves(node: Node) -> set[Node]:
    found: set[Node] = set()
    stack: list[object] = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack.extend(part)
        elif isinstance(part, tuple):
            if part[0] == "s":
                found.add(part)
            stack.extend(part[1:])
    return found


def _number_key(value: Value) -> AnswerKey:
    value = arith.rational(value)
    if not isinstance(value, tuple):
        return AnswerKey("q", rational_form(value))
    return AnswerKey("f", arith.decimal(value[0], 24))
