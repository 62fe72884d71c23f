"""Arithmetic that is exact while it can be and carries 60 digits when it cannot, under a work limit.

A value is an ``int`` or ``Fraction`` (exact), or a pair of mpmath's raw floats, real and imaginary part, at
:data:`PRECISION` bits. mpmath's low-level functions are pure, so this is safe in threads, which its contexts are not.
Sums that cancel to less than 2**-140 of their terms are zero: ``sqrt(2)*sqrt(2) - 2`` is 0 and not 1e-60.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Any, Final

from mpmath import libmp

__all__ = [
    "IMAGINARY",
    "PRECISION",
    "Approx",
    "OutOfWork",
    "TooHard",
    "Undefined",
    "Value",
    "Work",
    "add",
    "approx",
    "decimal",
    "div",
    "exact",
    "is_real",
    "is_zero",
    "mul",
    "neg",
    "power",
    "rational",
    "root",
    "settle",
    "sign",
    "tidy",
    "within",
]

PRECISION: Final = 200
MAX_BITS: Final = 20_000
"""Of an exact numerator or denominator; past it nothing is computed and the answer keeps its text as its key."""
MAX_EXPONENT: Final = 1_000_000
_NOISE: Final = 140  # bits: what cancels below this is rounding, with 60 bits to spare for a chain of operations
_ROUND: Final = "n"
_ZERO: Final = libmp.fzero
_ONE: Final = libmp.fone

Float = tuple[int, int, int, int]  # mpmath's raw float: sign, mantissa, exponent, bit count
Approx = tuple[Any, Any]
Exact = int | Fraction
Value = int | Fraction | Approx


class TooHard(Exception):
    """Past a size or work limit: the answer keeps its text as its key."""


class OutOfWork(TooHard):
    """The answer's work limit is spent."""


class Undefined(Exception):
    """No value here: a division by zero, the logarithm of zero."""


class Work:
    """A budget of elementary operations, so that no expression takes long however it is built."""

    __slots__ = ("left",)

    def __init__(self, left: int = 60_000) -> None:
        self.left = left

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise OutOfWork

    def handle(self, value: Value) -> None:
        """Spend what one operation with this result costs; that of a fraction grows with the square of its length."""
        bits = value.denominator.bit_length() if isinstance(value, Fraction) else 0
        self.spend(1 + (bits * bits >> 20))


def exact(value: Exact) -> Exact:
    """An exact value in lowest form (``int`` where integral), refused past :data:`MAX_BITS`."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            value = value.numerator
        elif value.denominator.bit_length() > MAX_BITS:
            raise TooHard("denominator")
    if value.numerator.bit_length() > MAX_BITS:
        raise TooHard("numerator")
    return value


def approx(value: Value) -> Approx:
    if isinstance(value, tuple):
        return value
    if isinstance(value, int):
        return libmp.from_int(value, PRECISION, _ROUND), _ZERO
    return libmp.from_rational(value.numerator, value.denominator, PRECISION, _ROUND), _ZERO


def is_zero(value: Value) -> bool:
    return value == (_ZERO, _ZERO) if isinstance(value, tuple) else value == 0


def is_real(value: Value) -> bool:
    return not isinstance(value, tuple) or value[1] == _ZERO


def sign(value: Value) -> int:
    """Sign of a real value."""
    if isinstance(value, tuple):
        return int(libmp.mpf_sign(value[0]))
    return (value > 0) - (value < 0)


def tidy(re: Any, im: Any) -> Approx:
    """Finite parts, each zero when it is rounding noise beside the other."""
    if im == _ZERO and re[1]:
        return re, im
    if (not re[1] and re[2]) or (not im[1] and im[2]):  # inf and nan have mantissa 0 and an exponent code
        raise Undefined("not finite")
    if re[1] and im[1]:
        gap = (re[2] + re[3]) - (im[2] + im[3])
        if gap > _NOISE:
            im = _ZERO
        elif gap < -_NOISE:
            re = _ZERO
    return re, im


def _sum(a: Any, b: Any) -> Any:
    total = libmp.mpf_add(a, b, PRECISION, _ROUND)
    if total[1] and a[1] and b[1] and total[2] + total[3] < max(a[2] + a[3], b[2] + b[3]) - _NOISE:
        return _ZERO
    return total


def add(a: Value, b: Value) -> Value:
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return exact(a + b)
    x, y = approx(a), approx(b)
    return tidy(_sum(x[0], y[0]), _ZERO if x[1] == y[1] == _ZERO else _sum(x[1], y[1]))


def neg(a: Value) -> Value:
    return (libmp.mpf_neg(a[0]), libmp.mpf_neg(a[1])) if isinstance(a, tuple) else -a


def mul(a: Value, b: Value) -> Value:
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return exact(a * b)
    if is_zero(a) or is_zero(b):
        return 0
    x, y = approx(a), approx(b)
    if x[1] == y[1] == _ZERO:
        return tidy(libmp.mpf_mul(x[0], y[0], PRECISION, _ROUND), _ZERO)
    ac, bd = libmp.mpf_mul(x[0], y[0], PRECISION, _ROUND), libmp.mpf_mul(x[1], y[1], PRECISION, _ROUND)
    ad, bc = libmp.mpf_mul(x[0], y[1], PRECISION, _ROUND), libmp.mpf_mul(x[1], y[0], PRECISION, _ROUND)
    return tidy(_sum(ac, libmp.mpf_neg(bd)), _sum(ad, bc))


def div(a: Value, b: Value) -> Value:
    if is_zero(b):
        raise Undefined("division by zero")
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return exact(Fraction(a) / b)
    x, y = approx(a), approx(b)
    if x[1] == y[1] == _ZERO:
        return tidy(libmp.mpf_div(x[0], y[0], PRECISION, _ROUND), _ZERO)
    return tidy(*libmp.mpc_div(x, y, PRECISION, _ROUND))


def _integer_root(value: int, n: int) -> int | None:
    """The integer n-th root of a natural number, if there is one."""
    if n == 2:
        root = isqrt(value)
        return root if root * root == value else None
    if value.bit_length() > 4000:
        return None
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**n <= value else (low, middle - 1)
    return low if low**n == value else None


def root(a: Value, n: int) -> Value:
    """The n-th root: exact where rational, real for odd n, principal otherwise."""
    if n == 0:
        raise Undefined("0th root")
    if n < 0:
        return div(1, root(a, -n))
    if n > 1000:
        raise TooHard("root index")
    if is_real(a) and sign(a) < 0:
        if n % 2:
            return neg(root(neg(a), n))
        if n == 2:
            return mul(root(neg(a), 2), IMAGINARY)
    if not isinstance(a, tuple):
        if a >= 0:
            top, bottom = _integer_root(a.numerator, n), _integer_root(a.denominator, n)
            if top is not None and bottom is not None:
                return exact(Fraction(top, bottom))
        a = approx(a)
    if a[1] == _ZERO and not a[0][0]:
        return libmp.mpf_nthroot(a[0], n, PRECISION, _ROUND), _ZERO
    return tidy(*libmp.mpc_nthroot(a, n, PRECISION, _ROUND))


def power(a: Value, b: Value) -> Value:
    if isinstance(b, (tuple, Fraction)):
        return _power_real(a, b)
    if not isinstance(a, tuple):
        if a in (0, 1, -1):
            if a == 0 and b <= 0:
                raise Undefined("0 to a power that is not positive")
            return a if b % 2 or a >= 0 else 1
        if max(a.numerator.bit_length(), a.denominator.bit_length()) * abs(b) > MAX_BITS:
            raise TooHard("power")
        return exact(Fraction(a) ** b if b < 0 or isinstance(a, Fraction) else a**b)
    if abs(b) > MAX_EXPONENT:
        raise TooHard("exponent")
    if a[1] == _ZERO:
        return tidy(libmp.mpf_pow_int(a[0], b, PRECISION, _ROUND), _ZERO)
    return tidy(*libmp.mpc_pow_int(a, b, PRECISION, _ROUND))


def _power_real(a: Value, b: Fraction | Approx) -> Value:
    if is_zero(a):
        if is_real(b) and sign(b) > 0:
            return 0
        raise Undefined("0 to a power that is not positive")
    if isinstance(b, Fraction) and b.denominator <= 64:
        # A written root, x^{2/3}: real for an odd index, as \sqrt[3]{x} is.
        return power(root(a, b.denominator), b.numerator)
    x, y = approx(a), approx(b)
    within(y, 20)
    if x[1] == y[1] == _ZERO and not x[0][0]:
        return tidy(libmp.mpf_pow(x[0], y[0], PRECISION, _ROUND), _ZERO)
    return tidy(*libmp.mpc_pow(x, y, PRECISION, _ROUND))


def settle(argument: Approx, result: Approx) -> Approx:
    """A function's result, freed of rounding: sin(pi) is 0, and tan(pi/2) has no value rather than 1e60."""
    re, im = tidy(*result)
    size = max(re[2] + re[3] if re[1] else -PRECISION, im[2] + im[3] if im[1] else -PRECISION)
    if argument[0][1] or argument[1][1]:
        of = max(argument[0][2] + argument[0][3], argument[1][2] + argument[1][3])
        if size < -_NOISE and of > -_NOISE // 2:
            return _ZERO, _ZERO
        if size > _NOISE and of < 6:
            raise Undefined("pole")
    return re, im


def within(a: Approx, bits: int) -> None:
    """Refuse arguments past 2**bits, whose reduction would cost more than it is worth."""
    if max(a[0][2] + a[0][3], a[1][2] + a[1][3]) > bits:
        raise TooHard("argument")


def rational(a: Value) -> Value:
    """The rational that a real value is within 2**-150 of, if its denominator is at most 10**12; else the value.

    So an expression in roots or logarithms that comes to a rational gets the key of that rational. An irrational
    this close to so small a fraction does not occur by chance (the odds are below 1e-20).
    """
    if not isinstance(a, tuple) or a[1] != _ZERO:
        return a
    negative, man, exp, bits = a[0]
    if not man or abs(exp + bits) > 2000:
        return 0 if not man else a
    n, d = (man << exp, 1) if exp >= 0 else (man, 1 << -exp)
    x, y, h0, k0, h1, k1 = n, d, 0, 1, 1, 0
    while y:
        quotient, rest = divmod(x, y)
        h0, k0, h1, k1 = h1, k1, quotient * h1 + h0, quotient * k1 + k0
        if k1 > 10**12:
            return a
        if abs(n * k1 - h1 * d) << 150 <= n * k1:
            return exact(Fraction(-h1 if negative else h1, k1))
        x, y = y, rest
    return a


def decimal(number: Any, digits: int) -> str:
    """A real raw float as ``d.ddde+x`` with this many significant digits; ``0`` for zero."""
    negative, man, exp, bits = number
    if not man:
        return "0"
    places = int((exp + bits) * 0.30102999566398120) - digits
    if abs(places) > 20_000:
        raise TooHard("magnitude")
    n, d = (man << exp, 1) if exp >= 0 else (man, 1 << -exp)
    n, d = (n * 10**-places, d) if places < 0 else (n, d * 10**places)
    text = str((2 * n + d) // (2 * d))  # digits or digits + 1 of them
    head = text[:digits]
    if len(text) > digits:
        rounded = str((int(text) + 5) // 10)
        places, head = places + 1 + len(rounded) - digits, rounded[:digits]
    return f"{'-' if negative else ''}{head[0]}.{head[1:]}e{places + digits - 1}"


IMAGINARY: Final[Approx] = (_ZERO, _ONE)
