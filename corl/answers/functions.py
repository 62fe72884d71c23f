"""The functions an answer may use, on the values of :mod:`corl.answers.arith`."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, factorial, gcd, lcm, prod
from typing import Any, Final

from mpmath import libmp

from corl.answers.arith import (
    MAX_BITS,
    PRECISION,
    Approx,
    TooHard,
    Undefined,
    Value,
    add,
    approx,
    div,
    exact,
    is_real,
    is_zero,
    mul,
    neg,
    rational,
    root,
    settle,
    sign,
    tidy,
    within,
)

__all__ = ["CONSTANTS", "MANY", "ONE", "binomial", "logarithm"]

MAX_FACTORIAL: Final = 1500
MAX_BINOMIAL: Final = 2000
_ROUND: Final = "n"
_ZERO: Final = libmp.fzero


def _split(
    real: Callable[..., Any], complex_: Callable[..., Any], bits: int, *, settled: bool = False
) -> Callable[[Value], Value]:
    """A function from mpmath's real and complex versions, for arguments below 2**bits.

    ``settled`` for those with a zero or a pole at an irrational: sin(pi) is 0 there, not 1e-60.
    """

    def function(a: Value) -> Value:
        x = approx(a)
        within(x, bits)
        result: Approx
        try:
            if x[1] != _ZERO:
                raise libmp.ComplexResult
            result = real(x[0], PRECISION, _ROUND), _ZERO
        except libmp.ComplexResult:
            result = complex_(x, PRECISION, _ROUND)
        return settle(x, result) if settled else tidy(*result)

    return function


_exp = _split(libmp.mpf_exp, libmp.mpc_exp, 20)
_log = _split(libmp.mpf_log, libmp.mpc_log, 1 << 15, settled=True)
_sin = _split(libmp.mpf_sin, libmp.mpc_sin, 64, settled=True)
_cos = _split(libmp.mpf_cos, libmp.mpc_cos, 64, settled=True)
_tan = _split(libmp.mpf_tan, libmp.mpc_tan, 64, settled=True)
_acos = _split(libmp.mpf_acos, libmp.mpc_acos, 64, settled=True)
_asin = _split(libmp.mpf_asin, libmp.mpc_asin, 64)
_atan = _split(libmp.mpf_atan, libmp.mpc_atan, 64)
_sinh = _split(libmp.mpf_sinh, libmp.mpc_sinh, 20)
_cosh = _split(libmp.mpf_cosh, libmp.mpc_cosh, 20)
_tanh = _split(libmp.mpf_tanh, libmp.mpc_tanh, 20)
_asinh = _split(libmp.mpf_asinh, libmp.mpc_asinh, 64)
_acosh = _split(libmp.mpf_acosh, libmp.mpc_acosh, 64, settled=True)
_atanh = _split(libmp.mpf_atanh, libmp.mpc_atanh, 64)


def _ln(a: Value) -> Value:
    if is_zero(a):
        raise Undefined("logarithm of zero")
    return _log(a)


def _over(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda a: div(1, function(a))


def _of_inverse(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda a: function(div(1, a))


def _absolute(a: Value) -> Value:
    if not isinstance(a, tuple):
        return a if a >= 0 else -a
    if a[1] == _ZERO:
        return neg(a) if sign(a) < 0 else a
    return root(add(mul((a[0], _ZERO), (a[0], _ZERO)), mul((a[1], _ZERO), (a[1], _ZERO))), 2)


def _floor(a: Value) -> Value:
    a = rational(a)
    if not isinstance(a, tuple):
        return a.numerator // a.denominator
    if a[1] != _ZERO or a[0][2] + a[0][3] > PRECISION // 2:
        raise TooHard("floor")
    return int(libmp.to_int(libmp.mpf_floor(a[0], PRECISION, "f")))


def _ceiling(a: Value) -> Value:
    return neg(_floor(neg(a)))


def _factorial(a: Value) -> Value:
    a = rational(a)
    if isinstance(a, int):
        if a < 0:
            raise Undefined("factorial of a negative integer")
        if a > MAX_FACTORIAL:
            raise TooHard("factorial")
        return exact(factorial(a))
    x = approx(add(a, 1))
    within(x, 10)
    if x[1] != _ZERO:
        raise TooHard("gamma of a complex number")
    return libmp.mpf_gamma(x[0], PRECISION, _ROUND), _ZERO


def _double_factorial(a: Value) -> Value:
    if not isinstance(a, int) or not 0 <= a <= MAX_FACTORIAL:
        raise TooHard("double factorial")
    return exact(prod(range(a, 0, -2)))


def binomial(n: Value, k: Value) -> Value:
    n, k = rational(n), rational(k)
    if isinstance(k, int):
        if isinstance(n, int) and n >= 0:
            if n > MAX_BINOMIAL and n.bit_length() * min(k, n - k) > MAX_BITS:
                raise TooHard("binomial")
            return exact(comb(n, k)) if k >= 0 else 0
        if 0 <= k <= 40:
            product: Value = 1
            for i in range(k):
                product = mul(product, add(n, -i))
            return div(product, factorial(k))
    return div(_factorial(n), mul(_factorial(k), _factorial(add(n, neg(k)))))


def _integers(values: list[Value]) -> list[int]:
    integers = [value for value in map(rational, values) if isinstance(value, int)]
    if len(integers) != len(values) or not values:
        raise TooHard("not integers")
    return integers


def _extreme(values: list[Value], wanted: int) -> Value:
    if not values or not all(map(is_real, values)):
        raise TooHard("order of complex numbers")
    best = values[0]
    for value in values[1:]:
        if sign(add(value, neg(best))) == wanted:
            best = value
    return best


def _constant(function: Callable[[int, str], Any]) -> Approx:
    return function(PRECISION, _ROUND), _ZERO


CONSTANTS: Final[dict[str, Approx]] = {"pi": _constant(libmp.mpf_pi), "e": _constant(libmp.mpf_e)}
DEGREE: Final = div(CONSTANTS["pi"], 180)

ONE: Final[dict[str, Callable[[Value], Value]]] = {
    "exp": _exp,
    "ln": _ln,
    "log": _ln,  # without a base: the natural one, as in every computer algebra system
    "lg": lambda a: div(_ln(a), _ln(10)),
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "cot": _over(_tan),
    "sec": _over(_cos),
    "csc": _over(_sin),
    "arcsin": _asin,
    "arccos": _acos,
    "arctan": _atan,
    "arccot": _of_inverse(_atan),
    "arcsec": _of_inverse(_acos),
    "arccsc": _of_inverse(_asin),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "coth": _over(_tanh),
    "sech": _over(_cosh),
    "csch": _over(_sinh),
    "arcsinh": _asinh,
    "arccosh": _acosh,
    "arctanh": _atanh,
    "abs": _absolute,
    "floor": _floor,
    "ceil": _ceiling,
    "sqrt": lambda a: root(a, 2),
    "cbrt": lambda a: root(a, 3),
    "factorial": _factorial,
    "factorial2": _double_factorial,
    "degree": lambda a: mul(a, DEGREE),
    "percent": lambda a: div(a, 100),
}
MANY: Final[dict[str, Callable[[list[Value]], Value]]] = {
    "gcd": lambda values: gcd(*_integers(values)),
    "lcm": lambda values: exact(lcm(*_integers(values))),
    "max": lambda values: _extreme(values, 1),
    "min": lambda values: _extreme(values, -1),
}


def logarithm(a: Value, base: Value) -> Value:
    """The logarithm to a base; exact powers come out rational."""
    bottom = _ln(base)
    if is_zero(bottom):
        raise Undefined("logarithm to base 1")
    return rational(div(_ln(a), bottom))
