"""Expression trees to fingerprints: equal fingerprints, equal functions.

An expression is evaluated at three fixed pseudo-random points per symbol, the third negative, so that ``sqrt(x^2)``
is not ``x``. The points are 61-bit fractions drawn from the symbol's name, no small rationals: a polynomial that
vanishes on the integers does not vanish there. Two different expressions that real answers contain collide with odds
far below 1e-20.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Final

from mpmath import libmp

from corl.answers import arith, functions, quadrature
from corl.answers.arith import IMAGINARY, Approx, TooHard, Value, Work
from corl.answers.syntax import Node

__all__ = ["evaluate", "fingerprint", "free_symbols", "rational_form", "relation_fingerprint", "spell_tree"]

POINTS: Final = 3
_DIGITS: Final = 24
MAX_TERMS: Final = 2000
Env = dict[str, Value]
_INFINITE: Final = ("inf",)

_COST: Final = {"factorial": 60, "factorial2": 5}


@lru_cache(maxsize=1024)
def _point(symbol: str, index: int) -> Approx:
    seed = sha256(f"{index}:{symbol}".encode()).digest()
    mantissa = int.from_bytes(seed[:8], "big") >> 3 | 1
    number = libmp.from_man_exp(mantissa + (1 << 60), -60, arith.PRECISION, "n")  # in (1, 3)
    return (libmp.mpf_neg(number) if index == 2 else number), libmp.fzero


def free_symbols(node: Node) -> set[str]:
    """The symbols of an expression, pi, e and i and bound variables left out."""
    found: set[str] = set()
    stack: list[object] = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack.extend(part)
        elif isinstance(part, tuple):
            if part[0] == "s":
                found.add(part[1])
            elif part[0] in ("sum", "prod", "int"):
                inner = free_symbols(part[4])
                inner.discard(part[1])
                found |= inner | free_symbols(part[2]) | free_symbols(part[3])
            else:
                stack.extend(part[1:])
    return found - {"pi", "e", "i"}


def evaluate(node: Node, env: Env, work: Work, choice: int = 1) -> Value:
    """The value of a tree with these values for its symbols; ``choice`` is the sign that plus-minus takes.

    Raises:
        TooHard: past a limit, or something that has no number (an infinity, an unevaluated sum).
        Undefined: no value at this point.
    """
    kind = node[0]
    work.spend(1)
    if kind == "q":
        return arith.exact(node[1])
    if kind == "s":
        return _symbol(node[1], env)
    if kind == "+":
        total: Value = 0
        for part in node[1]:
            total = arith.add(total, evaluate(part, env, work, choice))
            work.handle(total)
        return total
    if kind == "*":
        product: Value = 1
        for part in node[1]:
            if part[0] == "inv":
                product = arith.div(product, evaluate(part[1], env, work, choice))
            else:
                product = arith.mul(product, evaluate(part, env, work, choice))
            work.handle(product)
        return product
    if kind == "neg":
        return arith.neg(evaluate(node[1], env, work, choice))
    if kind == "/":
        return arith.div(evaluate(node[1], env, work, choice), evaluate(node[2], env, work, choice))
    if kind == "^":
        work.spend(4)
        if node[1] == ("s", "e") and "e" not in env:
            return _apply("exp", evaluate(node[2], env, work, choice), work)
        exponent = evaluate(node[2], env, work, choice)
        return arith.power(evaluate(node[1], env, work, choice), arith.rational(exponent))
    if kind == "f":
        return _apply(node[1], evaluate(node[2], env, work, choice), work)
    return _rare(node, env, work, choice)


def _symbol(name: str, env: Env) -> Value:
    if name in env:
        return env[name]
    if name == "i":
        return IMAGINARY
    constant = functions.CONSTANTS.get(name)
    if constant is None:
        raise TooHard("free symbol")
    return constant


def _apply(name: str, argument: Value, work: Work) -> Value:
    function = functions.ONE.get(name)
    if function is None:
        raise TooHard(name)
    work.spend(_COST.get(name, 12))
    return function(argument)


def _rare(node: Node, env: Env, work: Work, choice: int) -> Value:
    kind = node[0]
    if kind == "pm":
        value = evaluate(node[2], env, work, choice)
        return value if node[1] * choice > 0 else arith.neg(value)
    if kind == "root":
        work.spend(6)
        index = evaluate(node[1], env, work, choice)
        value = evaluate(node[2], env, work, choice)
        return arith.root(value, index) if isinstance(index, int) else arith.power(value, arith.div(1, index))
    if kind == "log":
        work.spend(20)
        return functions.logarithm(evaluate(node[2], env, work, choice), evaluate(node[1], env, work, choice))
    if kind == "binom":
        work.spend(150)
        return functions.binomial(evaluate(node[1], env, work, choice), evaluate(node[2], env, work, choice))
    if kind == "m":
        return functions.MANY[node[1]]([evaluate(part, env, work, choice) for part in node[2]])
    if kind in ("sum", "prod"):
        return _series(node, env, work, choice)
    if kind == "int":
        return _integral(node, env, work, choice)
    raise TooHard(kind)


def _series(node: Node, env: Env, work: Work, choice: int) -> Value:
    kind, variable, low, high, body = node
    start, end = evaluate(low, env, work, choice), evaluate(high, env, work, choice)
    if not isinstance(start, int) or not isinstance(end, int) or end - start >= MAX_TERMS:
        raise TooHard("range")
    total: Value = 0 if kind == "sum" else 1
    inner = dict(env)
    for index in range(start, end + 1):
        inner[variable] = index
        term = evaluate(body, inner, work, choice)
        total = arith.add(total, term) if kind == "sum" else arith.mul(total, term)
        work.handle(total)
    return total


def _integral(node: Node, env: Env, work: Work, choice: int) -> Value:
    _, variable, low, high, body = node
    if env or "int" in str(body):
        raise TooHard("an integral with parameters, or of an integral")
    inner: Env = {}

    def integrand(x: Approx) -> Value:
        inner[variable] = x
        return evaluate(body, inner, work, choice)

    def mirrored(x: Approx) -> Value:
        return integrand(arith.approx(arith.neg(x)))

    work.spend(1000)
    if high == _INFINITE:
        if low == ("neg", _INFINITE):
            return quadrature.integrate(lambda x: arith.add(integrand(x), mirrored(x)), 0, None)
        return quadrature.integrate(integrand, evaluate(low, {}, work, choice), None)
    if low == ("neg", _INFINITE):
        return quadrature.integrate(mirrored, arith.neg(evaluate(high, {}, work, choice)), None)
    return quadrature.integrate(integrand, evaluate(low, {}, work, choice), evaluate(high, {}, work, choice))


def _form(values: list[Value]) -> tuple[str, str]:
    """Kind and form of the values at the points."""
    first = values[0]
    if len(values) > 1 and all(_text(value, _DIGITS) == _text(first, _DIGITS) for value in values[1:]):
        values = [first]
    if len(values) > 1:
        return "f", ";".join(_text(value, _DIGITS) for value in values)
    value = arith.rational(first)
    if not isinstance(value, tuple):
        return "q", rational_form(value)
    if arith.is_real(value):
        return "f", arith.decimal(value[0], _DIGITS)
    return "c", f"{_part(value[0])};{_part(value[1])}"


def rational_form(value: int | Fraction) -> str:
    """``n`` or ``n/d`` in lowest terms; past 1,200 bits a hash, since Python prints no longer integers at will."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= 1200:
        return str(value)
    return "x" + sha256(f"{value.numerator:x}/{value.denominator:x}".encode()).hexdigest()


def _part(number: object) -> str:
    value = arith.rational((number, libmp.fzero))
    return str(value) if not isinstance(value, tuple) else arith.decimal(number, _DIGITS)


def _text(value: Value, digits: int) -> str:
    if not isinstance(value, tuple):
        value = arith.approx(value)
    real = arith.decimal(value[0], digits)
    return real if value[1] == libmp.fzero else f"{real},{arith.decimal(value[1], digits)}"


def fingerprint(node: Node, work: Work, choice: int = 1) -> tuple[str, str]:
    """Kind (``q`` rational, ``f`` real or symbolic, ``c`` complex) and form of an expression.

    Raises:
        TooHard, Undefined: it has none within the limits.
    """
    return _form(_values(node, work, choice))


def _values(node: Node, work: Work, choice: int = 1) -> list[Value]:
    symbols = free_symbols(node)
    if not symbols:
        return [evaluate(node, {}, work, choice)]
    return [
        evaluate(node, {symbol: _point(symbol, index) for symbol in symbols}, work, choice) for index in range(POINTS)
    ]


def relation_fingerprint(left: Node, right: Node, work: Work, *, signed: bool) -> str | None:
    """The form of ``left - right`` up to a constant factor (a positive one when ``signed``); None if constant.

    Raises:
        TooHard, Undefined: it has none within the limits.
    """
    values = _values(("+", [left, ("neg", right)]), work)
    if len(values) == 1 or arith.is_zero(values[0]):
        return None
    lead = values[0]
    if signed:
        if not arith.is_real(lead):
            raise TooHard("order of complex numbers")
        lead = functions.ONE["abs"](lead)
    ratios = [arith.div(value, lead) for value in (values if signed else values[1:])]
    return ";".join(_text(ratio, _DIGITS) for ratio in ratios)


def spell_tree(node: Node) -> str:
    """A tree as text, for the key of an expression past the limits; bound variables have no name."""
    return _spell(node, {})


def _spell(node: object, bound: dict[str, str]) -> str:
    if isinstance(node, list):
        return ",".join(_spell(part, bound) for part in node)
    if not isinstance(node, tuple):
        return str(node) if not isinstance(node, int) or node.bit_length() < 8000 else f"x{node:x}"
    if node[0] == "s":
        return bound.get(node[1], str(node[1]))
    if node[0] == "q":
        return _spell(node[1], bound)
    if node[0] in ("sum", "prod", "int"):
        inner = {**bound, node[1]: f"#{len(bound)}"}
        ends = f"{_spell(node[2], bound)},{_spell(node[3], bound)}"
        return f"({node[0]} {ends},{_spell(node[4], inner)})"
    return f"({' '.join([str(node[0]), *(_spell(part, bound) for part in node[1:])])})"
