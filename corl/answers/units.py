"""Units: a unit expression as a factor and a dimension, or as a mark where it has no dimension.

``5 m`` and ``5 cm`` are different quantities and ``2 hours`` and ``120 minutes`` the same one, so a unit with a
dimension becomes part of the typed value. Currencies, degrees, ``units`` and counted nouns have none: 90 degrees is
the number 90 with a mark. Two currencies, or apples and oranges, are not told apart: within one problem they do not
meet, while the sign is left out all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from corl.answers.lexer import Token
from corl.answers.vocabulary import words

__all__ = ["CENT", "Unit", "currency_of", "read_unit"]


class Unit(NamedTuple):
    """A unit: its name as written, its size in base units, its dimension (base unit to exponent)."""

    name: str
    factor: Fraction
    dimension: dict[str, int]

    @property
    def signature(self) -> str:
        """The dimension as text, ``kg m s^-2``; empty for what has none."""
        return " ".join(
            base if power == 1 else f"{base}^{power}" for base, power in sorted(self.dimension.items()) if power
        )


_ONE: Final = Fraction(1)
_TABLE: Final[dict[str, tuple[Fraction, dict[str, int]]]] = {}


def _define(names: str, factor: Fraction | int | str, **dimension: int) -> None:
    for name in names.split():
        _TABLE[name] = (Fraction(factor), dimension)


_define("m meter meters metre metres 米", 1, m=1)
_define("km kilometer kilometers kilometre kilometres 千米 公里", 1000, m=1)
_define("dm decimeter decimeters 分米", "1/10", m=1)
_define("cm centimeter centimeters centimetre centimetres 厘米", "1/100", m=1)
_define("mm millimeter millimeters millimetre millimetres 毫米", "1/1000", m=1)
_define("µm μm micrometer micrometers micron microns", "1/1000000", m=1)
_define("nm nanometer nanometers", "1/1000000000", m=1)
_define("in inch inches", "0.0254", m=1)
_define("ft foot feet", "0.3048", m=1)
_define("yd yard yards", "0.9144", m=1)
_define("mi mile miles", "1609.344", m=1)
_define("s sec secs second seconds 秒", 1, s=1)
_define("ms millisecond milliseconds", "1/1000", s=1)
_define("min mins minute minutes 分钟", 60, s=1)
_define("h hr hrs hour hours 小时", 3600, s=1)
_define("day days 天", 86400, s=1)
_define("week weeks", 604800, s=1)
_define("month months", 1, month=1)
_define("yr yrs year years", 12, month=1)
_define("decade decades", 120, month=1)
_define("century centuries", 1200, month=1)
_define("kg kilogram kilograms kilo kilos 千克 公斤", 1, kg=1)
_define("g gram grams 克", "1/1000", kg=1)
_define("mg milligram milligrams", "1/1000000", kg=1)
_define("t ton tons tonne tonnes 吨", 1000, kg=1)
_define("lb lbs pound pounds", "0.45359237", kg=1)
_define("oz ounce ounces", "0.028349523125", kg=1)
_define("L l liter liters litre litres 升", "1/1000", m=3)
_define("mL ml milliliter milliliters millilitre millilitres 毫升", "1/1000000", m=3)
_define("gal gallon gallons", "0.003785411784", m=3)
_define("quart quarts", "0.000946352946", m=3)
_define("pint pints", "0.000473176473", m=3)
_define("cup cups", "0.0002365882365", m=3)
_define("acre acres", "4046.8564224", m=2)
_define("ha hectare hectares", 10000, m=2)
_define("mph", "0.44704", m=1, s=-1)
_define("kph kmh", "5/18", m=1, s=-1)
_define("A amp amps ampere amperes", 1, A=1)
_define("mA milliamp milliamps", "1/1000", A=1)
_define("K kelvin kelvins", 1, K=1)
_define("mol mole moles", 1, mol=1)
_define("N newton newtons", 1, kg=1, m=1, s=-2)
_define("kN", 1000, kg=1, m=1, s=-2)
_define("J joule joules", 1, kg=1, m=2, s=-2)
_define("kJ kilojoule kilojoules", 1000, kg=1, m=2, s=-2)
_define("MJ", 10**6, kg=1, m=2, s=-2)
_define("cal calorie calories", "4.184", kg=1, m=2, s=-2)
_define("kcal kilocalorie kilocalories", 4184, kg=1, m=2, s=-2)
_define("kWh", 3600000, kg=1, m=2, s=-2)
_define("eV", "1.602176634e-19", kg=1, m=2, s=-2)
_define("W watt watts", 1, kg=1, m=2, s=-3)
_define("kW kilowatt kilowatts", 1000, kg=1, m=2, s=-3)
_define("MW megawatt megawatts", 10**6, kg=1, m=2, s=-3)
_define("Pa pascal pascals", 1, kg=1, m=-1, s=-2)
_define("kPa", 1000, kg=1, m=-1, s=-2)
_define("MPa", 10**6, kg=1, m=-1, s=-2)
_define("atm atmosphere atmospheres", 101325, kg=1, m=-1, s=-2)
_define("C coulomb coulombs", 1, A=1, s=1)
_define("V volt volts", 1, kg=1, m=2, s=-3, A=-1)
_define("Omega Ω ohm ohms", 1, kg=1, m=2, s=-3, A=-2)
_define("F farad farads", 1, kg=-1, m=-2, s=4, A=2)
_define("T tesla teslas", 1, kg=1, s=-2, A=-1)
_define("Hz hertz", 1, s=-1)
_define("kHz", 1000, s=-1)
_define("MHz", 10**6, s=-1)
_define("GHz", 10**9, s=-1)
_define("rpm", "1/60", s=-1)
_define("M", 1, mol=1, L=-1)
_define("bit bits", 1, bit=1)
_define("byte bytes", 8, bit=1)
_define("KB kilobyte kilobytes", 8000, bit=1)
_define("MB megabyte megabytes", 8 * 10**6, bit=1)
_define("GB gigabyte gigabytes", 8 * 10**9, bit=1)
_define("celsius", 1, degC=1)
_define("fahrenheit", 1, degF=1)

_MARKS: Final = {
    **dict.fromkeys(("deg", "degs", "degree", "degrees", "度"), "deg"),
    **dict.fromkeys(("rad", "rads", "radian", "radians"), "rad"),
    **dict.fromkeys(("dollar", "dollars", "USD", "usd", "bucks"), "$"),
    **dict.fromkeys(("euro", "euros", "EUR"), "€"),
    **dict.fromkeys(("GBP",), "£"),
    **dict.fromkeys(("yuan", "yen", "RMB", "元", "CNY", "JPY"), "¥"),
    **dict.fromkeys(("rupee", "rupees", "Rs", "INR"), "₹"),
    **dict.fromkeys(("unit", "units", "u", "个", "人", "次", "种"), "unit"),
}
CENT: Final = Unit("cent", Fraction(1, 100), {})
_CENTS: Final = words("cent cents penny pennies pence")
_AREA: Final = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_POWERS: Final = {"squared": 2, "cubed": 3}
_SINGLE: Final = words("m s g h L N J W V K C F A T")
"""Single letters that are a unit when they stand apart in plain math (``5 m``); others only inside ``\\text{}``."""
_GLUED: Final = words("cm km kg mm kPa Hz kHz MHz mph mL ml ft lb kJ kW kWh lbs")
"""Abbreviations that are a unit even without a space before them (``5cm``); ``mg`` may be a product there."""


def read_word(token: Token) -> Unit | None:
    """The unit a single word names."""
    text = token.text
    entry = _TABLE.get(text) or _TABLE.get(text.lower())
    if len(text) == 1 and text.isascii():
        if token.kind != "text" and not (token.spaced and text in _SINGLE):
            return None
    elif token.kind == "word" and not token.spaced and text not in _GLUED and len(text) < 4:
        return None
    if entry is not None:
        return Unit(text, *entry)
    mark = _MARKS.get(text) or _MARKS.get(text.lower())
    if mark is not None:
        return Unit(mark, _ONE, {})
    return CENT if text.lower() in _CENTS else None


def currency_of(token: Token) -> str | None:
    """The sign of a currency named by its letters before the amount: ``Rs 500``, ``USD 5``."""
    mark = _MARKS.get(token.text) if token.kind in ("word", "text") else None
    return mark if mark is not None and not mark.isalpha() else None


def read_unit(tokens: Sequence[Token]) -> Unit | None:
    """The unit that all these tokens spell (``m/s^2``, ``square feet``, ``miles per hour``, a degree sign and C)."""
    if tokens and tokens[0].kind == "sym" and tokens[0].text == "degree":
        return _after_degree(tokens[1:])
    parts: list[tuple[Unit, int]] = []  # with their exponents
    names: list[str] = []
    direction, ahead = 1, 1
    wanted = True  # a unit must come next
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        wordy = token.kind in ("text", "word", "letter", "fn")
        if wordy and token.text in _AREA:
            ahead = _AREA[token.text]
        elif not wanted and (
            (token.kind == "op" and token.text in "/*") or (wordy and token.text in ("per", "a", "an"))
        ):
            direction = direction if token.text == "*" else -1
            wanted = True
        elif not wanted and token.kind == "sep" and token.text == ".":
            continue
        elif not wanted and (token.text in _POWERS or (token.kind == "op" and token.text == "^")):
            power, at = (_POWERS[token.text], at) if token.text in _POWERS else _power(tokens, at)
            if power is None:
                return None
            parts[-1] = parts[-1][0], parts[-1][1] * power
            names.append(f"^{power}")
            continue
        elif wordy and (unit := read_word(token._replace(spaced=True) if parts else token)) is not None:
            parts.append((unit, direction * ahead))
            ahead, wanted = 1, False
        else:
            return None
        names.append(token.text)
    if wanted:
        return None
    factor, dimension = _ONE, dict[str, int]()
    for unit, exponent in parts:
        factor *= unit.factor**exponent
        for base, power in unit.dimension.items():
            dimension[base] = dimension.get(base, 0) + exponent * power
    return Unit(parts[0][0].name if len(names) == 1 else " ".join(names), factor, dimension)


def _power(tokens: Sequence[Token], at: int) -> tuple[int | None, int]:
    """A small integer exponent, braces and sign allowed, and the position after it."""
    text = ""
    while at < len(tokens) and len(text) < 6:
        token = tokens[at]
        if token.kind not in ("num", "open", "close", "op") or (token.kind == "op" and token.text != "-"):
            break
        text += token.text
        at += 1
        if text[-1] == "}" or (text[0] != "{" and text[-1].isdigit()):
            break
    digits = text.strip("{}")
    return (int(digits), at) if digits.lstrip("-").isdigit() and 0 < abs(int(digits)) < 10 else (None, at)


def _after_degree(tokens: Sequence[Token]) -> Unit | None:
    if not tokens:
        return Unit("deg", _ONE, {})
    if len(tokens) == 1 and tokens[0].text.upper() in ("C", "F", "CELSIUS", "FAHRENHEIT"):
        scale = "deg" + tokens[0].text[0].upper()
        return Unit(scale, _ONE, {scale: 1})
    return None
