"""Definite integrals by double-exponential quadrature, accepted only when two levels agree to 26 digits.

Source: Takahasi and Mori, *Double exponential formulas for numerical integration* (1974); the tanh-sinh rule for a
finite interval and the exp-sinh rule for a half line. An integral that does not settle is not typed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from mpmath import libmp

from corl.answers import arith
from corl.answers.arith import Approx, OutOfWork, TooHard, Undefined, Value

__all__ = ["integrate"]

_LEVELS: Final = 7
_FIRST: Final = 0.5  # step of level 0; each level halves it
_SPAN: Final = 5.0  # |t| beyond this adds less than the precision
_AGREE: Final = 26
_FAR: Final = 6  # bits of x
_BITS: Final = 160
_ROUND: Final = "n"


@lru_cache(maxsize=2 * _LEVELS)
def _nodes(level: int, half_line: bool) -> list[tuple[Any, Any, Any]]:
    """The new nodes of a level: for a finite interval (near end 1-x, weight), for the half line (x, weight)."""
    step = _FIRST / 2**level
    count = int(_SPAN / step)
    half_pi = libmp.mpf_shift(libmp.mpf_pi(_BITS), -1)
    nodes = []
    for k in range(-count, count + 1):
        if level and k % 2 == 0:
            continue
        t = libmp.from_float(k * step, _BITS, _ROUND)
        cosh, sinh = libmp.mpf_cosh_sinh(t, _BITS, _ROUND)
        inner = libmp.mpf_mul(half_pi, sinh, _BITS, _ROUND)
        slope = libmp.mpf_mul(half_pi, cosh, _BITS, _ROUND)
        if half_line:
            x = libmp.mpf_exp(inner, _BITS, _ROUND)
            nodes.append((x, libmp.mpf_mul(x, slope, _BITS, _ROUND), x))
            continue
        # With u = exp(-2 |inner|): the distance to the nearer end of [-1, 1] is 2u/(1+u), without cancellation.
        u = libmp.mpf_exp(libmp.mpf_mul_int(libmp.mpf_abs(inner), -2, _BITS, _ROUND), _BITS, _ROUND)
        bottom = libmp.mpf_add(libmp.fone, u, _BITS, _ROUND)
        distance = libmp.mpf_div(libmp.mpf_shift(u, 1), bottom, _BITS, _ROUND)
        weight = libmp.mpf_div(
            libmp.mpf_mul(libmp.mpf_shift(u, 2), slope, _BITS, _ROUND),
            libmp.mpf_mul(bottom, bottom, _BITS),
            _BITS,
            _ROUND,
        )
        nodes.append((distance, weight, libmp.fone if k > 0 else libmp.fzero))
    return nodes


def integrate(function: Callable[[Approx], Value], low: Value | None, high: Value | None) -> Value:
    """The integral from ``low`` to ``high``; None for ``high`` is plus infinity.

    Raises:
        TooHard: it does not settle, or has ends that are not real.
    """
    if low is None or not arith.is_real(low) or (high is not None and not arith.is_real(high)):
        raise TooHard("ends")
    half_line = high is None
    top: Value = 0 if high is None else high
    half = 1 if half_line else arith.div(arith.add(top, arith.neg(low)), 2)
    total: Value = 0
    previous: Value | None = None
    for level in range(_LEVELS):
        for distance, weight, above in _nodes(level, half_line):
            if half_line:
                x = arith.add(low, (distance, libmp.fzero))
            else:
                offset = arith.mul(half, (distance, libmp.fzero))
                x = arith.add(top, arith.neg(offset)) if above[1] else arith.add(low, offset)
            try:
                total = arith.add(total, arith.mul(function(arith.approx(x)), (weight, libmp.fzero)))
            except Undefined:
                continue  # the integrand's limit at an end that the node has rounded onto
            except TooHard as error:
                if half_line and not isinstance(error, OutOfWork) and distance[2] + distance[3] > _FAR:
                    continue  # exp(-x^2) far out; what does not vanish there does not settle either
                raise
        step = arith.div(arith.mul(half, total), 2 ** (level + 1))
        if previous is not None and level > 1 and _agree(previous, step):
            return step
        previous = step
    raise TooHard("integral does not settle")


def _agree(a: Value, b: Value) -> bool:
    x, y = arith.approx(arith.add(a, arith.neg(b))), arith.approx(b)
    if not y[0][1]:
        return not x[0][1]
    return not x[0][1] or bool(x[0][2] + x[0][3] < y[0][2] + y[0][3] - int(_AGREE * 3.33))
