"""Equations, inequalities, memberships, congruences.

A single unknown drops its name: ``x = 5`` is 5 and ``x > 3`` is (3, oo), as most answers are written with and without
it. An equation between expressions stays an equation, up to a constant factor: ``x = 2y`` is ``y = x/2``. The name is
kept beside the key, so that lists of relations can tell ``a = 1, b = 2`` from ``a = 2, b = 1``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from corl.answers.arith import TooHard, Undefined
from corl.answers.evaluate import relation_fingerprint, spell_tree
from corl.answers.expressions import is_constant, is_value, try_parse
from corl.answers.forms import build
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token, spell
from corl.answers.spans import INFINITE_HIGH, INFINITE_LOW, REALS, Span, remove_points, span_key
from corl.answers.structure import split, trim
from corl.answers.typed import Typed, Typer, unite

__all__ = ["congruence", "is_relation", "name_of", "relation"]

_ORDER: Final = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SIMPLE: Final = re.compile(r"[A-Za-z]+(?:_[ A-Za-z0-9]+)?'*")
_TRIGONOMETRIC: Final = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_DERIVATIVE: Final = re.compile(
    r"d?frac \{ d(?: \^ [0-9])?(?: ?[a-z])? \} \{ d ?[a-z](?: \^ [0-9])? \}|d[a-z] / d[a-z]"
)
_NAME_KINDS: Final = frozenset({"letter", "word", "text", "cmd", "fn"})
_NAME_COMMANDS: Final = frozenset(
    {"angle", "triangle", "overline", "bar", "tilde", "mathcal", "mathbb", "mathfrak", "lim", "mathscr"}
)


def is_relation(token: Token) -> bool:
    return token.kind == "rel"


def relation(tokens: list[Token], typer: Typer) -> Typed | None:
    """The typed form of tokens with relation signs at the top level; None for what has no normal form."""
    sides, signs = split(tokens, is_relation)
    sides = [trim(side) for side in sides]
    kinds = {sign.text for sign in signs}
    if "~=" in kinds:
        return _approximate(sides, signs, typer)
    if kinds == {"="}:
        return _equality(sides, typer)
    if kinds == {"in"} and len(sides) == 2:
        return _membership(sides, typer)
    if kinds == {"=="} and len(sides) == 2:
        inner = congruence(sides[1], typer)
        return Typed(inner, name_of(sides[0]), relation=True) if inner is not None else None
    if kinds == {"!="} and len(sides) == 2:
        return _unequal(sides, typer)
    if kinds <= {"<", "<="} or kinds <= {">", ">="}:
        return _inequality(sides, [sign.text for sign in signs], typer)
    return None


def name_of(tokens: Sequence[Token]) -> str | None:
    """The name that a left-hand side is: ``x``, ``x_1``, ``f(x)``, ``AB``, ``\\angle A``, ``P(X > 2)``; else None."""
    if not tokens or len(tokens) > 40:
        return None
    first = tokens[0]
    if first.text in ("frac", "dfrac", "dy") and _DERIVATIVE.fullmatch(spell(list(tokens))):
        return spell(list(tokens))
    if first.kind == "op" and first.text == "|" and tokens[-1].text == "|" and len(tokens) > 2:
        inner = name_of(tokens[1:-1])
        return f"|{inner}|" if inner else None
    if first.kind not in _NAME_KINDS or (first.kind == "cmd" and first.text not in _NAME_COMMANDS):
        return None
    if first.kind == "word" and first.text.islower() and len(first.text) < 4:
        return None  # xy = 5 is an equation
    if first.kind == "letter" and first.text in ("pi", "e", "i"):
        return None
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.kind == "open") - (token.kind == "close")
        if depth or token.kind in ("letter", "word", "text", "cmd", "open", "close"):
            if token.kind == "cmd" and token.text not in _NAME_COMMANDS and not depth:
                return None
            continue
        if token.kind == "fn" and at == 0 and token.text in _TRIGONOMETRIC:
            continue
        if token.kind == "op" and token.text in ("_", "'"):
            continue
        if token.kind == "num" and at and tokens[at - 1].text == "_":
            continue
        if token.kind == "op" and token.text == "^" and spell(list(tokens[at + 1 : at + 5])) == "{ - 1 }":
            continue
        return None
    adjacent = sum(token.kind == "letter" for token in tokens) if all(t.kind == "letter" for t in tokens) else 0
    return None if adjacent > 1 else spell(list(tokens))


def _is_simple(name: str) -> bool:
    """Whether a name is an unknown (``x``, ``x_1``) rather than a definition's left-hand side (``f(x)``, ``S_n``)."""
    if _SIMPLE.fullmatch(name.replace("{ ", "").replace(" }", "").replace(" _ ", "_")) is None:
        return False
    base, _, index = name.partition(" _ ")
    return (len(base) == 1 or base.islower()) and (not index or index.strip("{ }").isdigit())


# -- equality --------------------------------------------------------------------------------------------------------


def _approximate(sides: list[list[Token]], signs: list[Token], typer: Typer) -> Typed | None:
    """``10\\pi \\approx 31.4`` is its exact side."""
    at = next(i for i, sign in enumerate(signs) if sign.text == "~=")
    left = _joined(sides[: at + 1], signs[:at])
    right = _joined(sides[at + 1 :], signs[at + 1 :])
    exact = typer.answer(left)
    if exact is not None and is_constant(exact.key) and name_of(left) is None:
        return exact
    value = typer.answer(right)
    return replace(value, name=name_of(left), relation=True) if value is not None else None


def _joined(sides: list[list[Token]], signs: list[Token]) -> list[Token]:
    tokens = list(sides[0])
    for sign, side in zip(signs, sides[1:], strict=True):
        tokens += [sign, *side]
    return tokens


def _equality(sides: list[list[Token]], typer: Typer) -> Typed | None:
    if not all(sides):
        return None
    if len(sides) > 2:
        return _chain(sides, typer)
    left, right = sides
    name = name_of(left)
    if name is None and name_of(right) is not None:
        value = typer.answer(left)
        if value is not None and is_constant(value.key):
            left, right, name = right, left, name_of(right)
    value = typer.answer(right)
    if name is not None and value is not None and not value.relation:
        if not _is_simple(name) or not is_value(value.key) or is_constant(value.key):
            return replace(value, name=name, relation=True)
        return _equation(left, right, typer, bare=value.key)
    if name is None and value is not None and is_constant(value.key):
        same = typer.answer(left)
        if same is not None and is_constant(same.key):
            return value if same.key == value.key else None
    names = _names(left)
    if names and value is not None and value.key.kind == "tuple":
        return replace(value, relation=True)
    return _equation(left, right, typer)


def _names(tokens: list[Token]) -> list[str]:
    """The unknowns of ``(x, y)``."""
    if len(tokens) < 5 or tokens[0].text != "(" or tokens[-1].text != ")":
        return []
    parts, _ = split(tokens[1:-1], lambda token: token.text == ",")
    names = [name_of(part) for part in parts]
    return [name for name in names if name] if all(names) and len(names) > 1 else []


def _equation(left: list[Token], right: list[Token], typer: Typer, bare: AnswerKey | None = None) -> Typed | None:
    nodes = try_parse(left), try_parse(right)
    if nodes[0] is None or nodes[1] is None:
        return None
    try:
        form = relation_fingerprint(nodes[0], nodes[1], typer.work, signed=False)
    except (TooHard, Undefined, OverflowError, ValueError):
        form = f"#{spell_tree(nodes[0])}={spell_tree(nodes[1])}"
    if form is None:
        return None
    return Typed(replace(build("eq", form), bare=bare), relation=True)


def _chain(sides: list[list[Token]], typer: Typer) -> Typed | None:
    """``A = \\pi r^2 = 9\\pi`` is its last value; ``x = y = 5`` keeps both names."""
    last = typer.answer(sides[-1])
    names = [name_of(side) for side in sides[:-1]]
    if last is not None and is_constant(last.key):
        simple = [name for name in names if name is not None and _is_simple(name)]
        if len(simple) == len(names):
            form = ",".join(f"{name}={last.key.canonical}" for name in sorted(simple))
            return Typed(replace(build("assign", form), bare=last.key), relation=True)
        return replace(last, name=names[0], relation=names[0] is not None)
    return _equality([sides[0], sides[-1]], typer)


# -- order -----------------------------------------------------------------------------------------------------------


def _inequality(sides: list[list[Token]], signs: list[str], typer: Typer) -> Typed | None:
    if signs[0] in (">", ">="):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    if len(sides) == 2:
        name, other = name_of(sides[0]), name_of(sides[1])
        if name is not None and (end := _end(sides[1], typer)) is not None:
            return _spanned(Span(INFINITE_LOW, False, end, signs[0] == "<=" and end.kind != "inf"), name)
        if other is not None and (end := _end(sides[0], typer)) is not None:
            return _spanned(Span(end, signs[0] == "<=" and end.kind != "inf", INFINITE_HIGH, False), other)
        return _ordered(sides[0], sides[1], signs[0], typer)
    if len(sides) == 3 and (name := name_of(sides[1])) is not None:
        low, high = _end(sides[0], typer, constant=False), _end(sides[2], typer, constant=False)
        if low is not None and high is not None:
            closed = signs[0] == "<=" and low.kind != "inf", signs[1] == "<=" and high.kind != "inf"
            return _spanned(Span(low, closed[0], high, closed[1]), name)
    if len(sides) > 6:
        return None
    parts = [_ordered(a, b, sign, typer) for a, b, sign in zip(sides, sides[1:], signs, strict=False)]
    if any(part is None for part in parts):
        return None
    return Typed(build("ineq", ";".join(part.key.form for part in parts if part is not None)), relation=True)


def _end(tokens: list[Token], typer: Typer, *, constant: bool = True) -> AnswerKey | None:
    typed = typer.answer(tokens)
    if typed is None or typed.relation or not (is_value(typed.key) or typed.key.kind == "inf"):
        return None
    return typed.key if is_constant(typed.key) or not constant else None


def _spanned(span: Span, name: str) -> Typed:
    return Typed(span_key(span), name=name, relation=True, spans=(span,))


def _ordered(left: list[Token], right: list[Token], sign: str, typer: Typer) -> Typed | None:
    """``left < right`` between expressions: the fingerprint of their difference up to a positive factor."""
    nodes = try_parse(left), try_parse(right)
    if nodes[0] is None or nodes[1] is None:
        return None
    try:
        form = relation_fingerprint(nodes[1], nodes[0], typer.work, signed=True)
    except (TooHard, Undefined, OverflowError, ValueError):
        form = f"#{spell_tree(nodes[1])},{spell_tree(nodes[0])}"
    if form is None:
        return None
    return Typed(build("ineq", f"{form}{'>=' if sign == '<=' else '>'}0"), relation=True)


def _unequal(sides: list[list[Token]], typer: Typer) -> Typed | None:
    name = name_of(sides[0])
    point = _end(sides[1], typer)
    if name is not None and point is not None:
        spans = remove_points([REALS], [point])
        if spans:
            return replace(unite(spans), name=name, relation=True)
    equation = _equation(sides[0], sides[1], typer)
    return Typed(build("ineq", equation.key.form + "!=0"), relation=True) if equation is not None else None


# -- membership ------------------------------------------------------------------------------------------------------


def _membership(sides: list[list[Token]], typer: Typer) -> Typed | None:
    name = name_of(sides[0]) or (spell(sides[0]) if _names(sides[0]) or len(sides[0]) < 8 else None)
    inside = typer.answer(sides[1])
    if name is None or inside is None:
        return None
    if inside.spans is None and inside.key.kind in ("text", "f", "raw"):
        return Typed(build("text", f"in {spell(sides[1])}"), name=name, relation=True)
    return Typed(inside.key, name=name, relation=True, spans=inside.spans)


def congruence(tokens: list[Token], typer: Typer) -> AnswerKey | None:
    r"""``3 \pmod 5``: a residue, reduced where both numbers are integers."""
    at = next((i for i, token in enumerate(tokens) if token.text in ("pmod", "bmod", "mod", "pod")), None)
    if not at:
        return None
    left = tokens[: at - 1] if tokens[at - 1].text == "(" else tokens[:at]
    right = [token for token in tokens[at + 1 :] if token.kind not in ("open", "close")]
    residue, modulus = typer.answer(left), typer.answer(right)
    if residue is None or modulus is None:
        return None
    a, n = residue.key.value, modulus.key.value
    if a is not None and n is not None and a.denominator == n.denominator == 1 and n > 0:
        return build("mod", f"{a.numerator % n.numerator} mod {n.numerator}")
    return build("mod", f"{residue.key.canonical} mod {modulus.key.canonical}")
