"""From what a model wrote to plain LaTeX in ASCII, as far as that goes.

Superscripts and vulgar fractions are rewritten *before* compatibility normalisation, which would make 23 of ``2³``.
Every pattern is linear: a bounded look-around and no nested repetition.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["clean", "printable"]

_SUPER: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_SUB: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₖₐₓ", "0123456789+-()nkax")
_SUPER_RUN: Final = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_SUB_RUN: Final = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₖₐₓ]+")
_OVERLINED: Final = re.compile("(?:[0-9]\u0305)+")
_FOREIGN_DIGIT: Final = re.compile(r"(?![0-9])\d")
_DOTTED: Final = re.compile("([0-9])\u0307")

_GREEK: Final = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ϵ": "epsilon", "ζ": "zeta", "η": "eta",
    "θ": "theta", "ϑ": "theta", "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "phi", "ϕ": "phi", "χ": "chi", "ψ": "psi",
    "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma",
    "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_COMMANDS: Final = {
    "×": "times", "÷": "div", "·": "cdot", "⋅": "cdot", "∙": "cdot", "•": "cdot", "∞": "infty", "≤": "le", "⩽": "le",
    "≦": "le", "≥": "ge", "⩾": "ge", "≧": "ge", "≠": "ne", "≈": "approx", "≡": "equiv", "∈": "in", "∉": "notin",
    "∪": "cup", "∩": "cap", "∅": "emptyset", "⌀": "emptyset", "∖": "setminus", "±": "pm", "∓": "mp", "→": "to",
    "↦": "mapsto", "⇒": "implies", "⇔": "iff", "∧": "land", "∨": "lor", "∑": "sum", "∏": "prod", "∫": "int",
    "∠": "angle", "△": "triangle", "⊥": "perp", "∥": "parallel", "∼": "sim", "≅": "cong", "ℝ": "mathbb{R}",
    "ℤ": "mathbb{Z}", "ℕ": "mathbb{N}", "ℚ": "mathbb{Q}", "ℂ": "mathbb{C}", "⟨": "langle", "〈": "langle",
    "⟩": "rangle", "〉": "rangle", "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "∂": "partial",
    "√": "sqrt", "∛": "sqrt[3]", "∜": "sqrt[4]", "°": "degree", "º": "degree", "ℓ": "ell",
}  # fmt: skip
_PLAIN: Final = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "∗": "*", "∕": "/", "⁄": "/", "∣": "|",
    "‖": "|", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "，": ",", "、": ",", "。": ".", "．": ".", "；": ";",
    "：": ":", "￥": "¥", "…": "...", "⋯": "...", "℃": r"\degree C", "℉": r"\degree F", "µ": "μ",
    "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200a": " ", "\u00a0": " ", "\u3000": " ", "\u2062": "",
    "\u200b": "", "\u200c": "", "\u200d": "", "\u200e": "", "\u200f": "", "\u2060": "", "\ufeff": "", "\u00ad": "",
    "\u2061": "", "\u2063": "", "\u2064": "", "\ufe0f": "",
}  # fmt: skip
_VULGAR: Final = {
    sign: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign).split("\u2044"))
    for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
_CONTROL: Final = {code: " " if code in (9, 10, 11, 12, 13) else "" for code in (*range(32), *range(127, 160))}
_TABLE: Final = str.maketrans(
    {
        **{sign: f"\\{name} " for sign, name in (_GREEK | _COMMANDS).items()},
        **_PLAIN,
        **_VULGAR,
    }
)

_GAP: Final = r"(?:\\[,;:! ]|~|\{,\}|,\\!|[ '])"
_GROUPED: Final = re.compile(rf"(?<![0-9.,])[0-9]{{1,3}}(?:{_GAP}[0-9]{{3}})+(?![0-9])")
_EUROPEAN: Final = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}(?![0-9,])")
_DOT_GROUPED: Final = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9.])")
_GAPS: Final = re.compile(_GAP)
_DECIMAL_COMMA: Final = re.compile(r"(?<=[0-9])\{,\}(?=[0-9])")
_DEGREE: Final = re.compile(r"\^\s?(?:\{\s?\\(?:circ|degree)\s?\}|\\(?:circ|degree)(?![A-Za-z]))")
_ST: Final = r"\s?(?:st|nd|rd|th)\s?"
_TEXT_COMMAND: Final = r"\\(?:text|textrm|textsuperscript|mathrm|mbox|rm)\s?"
_ORDINAL: Final = re.compile(
    rf"(?<=[0-9])\s?(?:\^\s?\{{(?:{_TEXT_COMMAND}\{{{_ST}\}}|\\rm{_ST}|{_ST})\}}|\^?{_TEXT_COMMAND}\{{{_ST}\}}"
    rf"|(?:st|nd|rd|th)(?![A-Za-z]))"
)
_DOLLAR: Final = re.compile(r"(?<!\\)\$")


def printable(raw: str) -> str:
    """The text without lone surrogates (which no encoder takes) and control characters; white space is spaces."""
    if raw.isascii() and raw.isprintable():
        return raw
    return raw.encode("utf-8", "backslashreplace").decode().translate(_CONTROL)


def clean(raw: str) -> str:
    """Unicode signs as LaTeX commands, digits grouped by a valid grouping joined, math delimiters dropped."""
    text = printable(raw)
    if not text.isascii():
        text = _SUPER_RUN.sub(lambda run: "^{" + run[0].translate(_SUPER) + "}", text)
        text = _SUB_RUN.sub(lambda run: "_{" + run[0].translate(_SUB) + "}", text)
        text = _OVERLINED.sub(lambda run: "\\overline{" + run[0].replace("\u0305", "") + "}", text)
        text = _DOTTED.sub(r"\\dot{\1}", text)
        text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
        text = _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
    text = text.strip(' `"')
    for mark in ("**", "__"):
        if text.startswith(mark) and text.endswith(mark) and len(text) > 4:
            text = text[2:-2]
    if "$" in text:
        signs = len(_DOLLAR.findall(text))
        if signs % 2:
            text = _DOLLAR.sub(lambda _: "\\$ ", text, count=1)
        if signs > 1:
            text = _DOLLAR.sub("", text)
    if any(sign in text for sign in "\\ ~'{"):
        text = _GROUPED.sub(lambda run: _GAPS.sub("", run[0]), text)
        text = _DECIMAL_COMMA.sub(".", text)
        text = _DEGREE.sub(r"\\degree ", text)
    if "." in text:
        text = _EUROPEAN.sub(lambda run: run[0].replace(".", "").replace(",", "."), text)
        text = _DOT_GROUPED.sub(lambda run: run[0].replace(".", ""), text)
    return _ORDINAL.sub(r"\\ordinal ", text)
