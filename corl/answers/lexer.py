"""Tokens of an answer: LaTeX, plain text and calculator notation alike.

Fonts, sizes and spacing are dropped here; a letter run inside ``\\text{}`` becomes a ``text`` token, one outside a
``word``, so that later stages can tell a unit or a plain word from a product of symbols.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from corl.answers.vocabulary import words

__all__ = ["Token", "lex", "spell"]


class Token(NamedTuple):
    """One token.

    Kinds: num, periodic, dots; letter, word, text, fn, cmd, sym; op, rel, setop, sep, open, close, money.
    """

    kind: str
    text: str
    spaced: bool  # white space lay before it


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<periodic>[0-9]*\.[0-9]*\\(?:overline|bar|overbar|widebar)\s*(?:\{\s*[0-9]+\s*\}|[0-9])
        |[0-9]*\.[0-9]*\\dot\s*(?:\{[0-9]\}|[0-9])(?:[0-9]*\\dot\s*(?:\{[0-9]\}|[0-9]))?
        |[0-9]+\.[0-9]*\([0-9]+\))
    |(?P<num>(?:[0-9]*\.[0-9]+|1)[eE]-[0-9](?![A-Za-z0-9{.])
        |(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE](?:\+?[0-9]{1,7}|-[0-9]{2,7})(?![A-Za-z0-9{.]))?)
    |(?P<cmd>\\[A-Za-z]+\*?|\\.)
    |(?P<dots>\.\.\.)
    |(?P<word>[^\W\d_]+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_SPACING: Final = words(
    r"\, \; \: \! \quad \qquad \thinspace \enspace \hfill \par \newline \noindent \allowbreak \nobreak"
) | {"\\ ", "\\\n", "\\(", "\\)", "\\[", "\\]"}
_DROPPED: Final = words(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle "
    "scriptstyle limits nolimits mathbf boldsymbol bm pmb mathit bf it rm cal underline "
    "mathop mathord mathbin mathrel mathstrut strut vec hat overrightarrow widehat emph small large Large huge "
    "centering mathnormal operatorname* underbrace overbrace cancel bigstar"
)
_DROPPED_WITH_ARGUMENT: Final = words(
    "hspace hspace* vspace phantom vphantom hphantom color textcolor label tag mspace hskip kern"
)
_TEXT: Final = words(
    "text textbf textit textrm textnormal textsf texttt textup textsc mbox hbox mathrm operatorname mathsf mathtt"
)
_OPENING: Final = {
    **dict.fromkeys(_TEXT, "text"),
    **dict.fromkeys(_DROPPED_WITH_ARGUMENT, "skip"),
    **dict.fromkeys(("boxed", "fbox", "framebox", "ensuremath"), "vanish"),
}
_FUNCTIONS: Final = words(
    "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec arccsc "
    "ln log lg exp gcd lcm max min"
)
_ALIASES: Final = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "arcsinh": "arcsinh", "arccosh": "arccosh",
    "arctanh": "arctanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "cosec": "csc", "tg": "tan",
    "ctg": "cot", "arctg": "arctan", "sqrt": "sqrt", "cbrt": "cbrt", "abs": "abs", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
_GREEK: Final = words(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar partial nabla pi"
)
_MAPPED: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(("times", "cdot", "ast", "star", "bullet"), ("op", "*")),
    "div": ("op", "/"),
    "varepsilon": ("letter", "epsilon"),
    "varphi": ("letter", "phi"),
    "vartheta": ("letter", "theta"),
    "varrho": ("letter", "rho"),
    "varsigma": ("letter", "sigma"),
    "imath": ("letter", "i"),
    "jmath": ("letter", "j"),
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), ("rel", "<=")),
    **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), ("rel", ">=")),
    "lt": ("rel", "<"),
    "gt": ("rel", ">"),
    **dict.fromkeys(("ne", "neq"), ("rel", "!=")),
    **dict.fromkeys(("approx", "thickapprox", "doteq", "simeq"), ("rel", "~=")),
    "equiv": ("rel", "=="),
    **dict.fromkeys(("in", "isin"), ("rel", "in")),
    "notin": ("rel", "notin"),
    **{name: ("rel", name) for name in ("to", "rightarrow", "mapsto", "implies", "Rightarrow", "iff")},
    **{name: ("rel", name) for name in ("Leftrightarrow", "sim", "cong", "parallel", "perp", "subset", "subseteq")},
    **dict.fromkeys(("mid",), ("rel", "|")),
    "colon": ("sep", ":"),
    **dict.fromkeys(("cup", "bigcup"), ("setop", "cup")),
    **dict.fromkeys(("cap", "bigcap"), ("setop", "cap")),
    **dict.fromkeys(("setminus", "backslash", "smallsetminus"), ("setop", "minus")),
    **dict.fromkeys(("emptyset", "varnothing", "O"), ("sym", "empty")),
    "infty": ("sym", "inf"),
    "degree": ("sym", "degree"),
    "textdegree": ("sym", "degree"),
    "ordinal": ("sym", "ordinal"),
    "pm": ("op", "+-"),
    "mp": ("op", "-+"),
    **dict.fromkeys(("ldots", "cdots", "dots", "dotsc", "dotsb", "dotso", "vdots", "ddots"), ("dots", "...")),
    **dict.fromkeys(("lor", "vee"), ("text", "lor")),
    **dict.fromkeys(("land", "wedge"), ("text", "land")),
    "prime": ("op", "'"),
    "lbrace": ("open", "\\{"),
    "rbrace": ("close", "\\}"),
    "langle": ("open", "<"),
    "rangle": ("close", ">"),
    "lfloor": ("open", "floor"),
    "rfloor": ("close", "floor"),
    "lceil": ("open", "ceil"),
    "rceil": ("close", "ceil"),
    **dict.fromkeys(("vert", "lvert", "rvert", "Vert", "lVert", "rVert"), ("op", "|")),
    "pounds": ("money", "£"),
    "textdollar": ("money", "$"),
    "euro": ("money", "€"),
    "textbackslash": ("op", "\\"),
    "lbrack": ("open", "["),
    "rbrack": ("close", "]"),
    "cr": ("sep", "\\\\"),
}
_ESCAPED: Final[dict[str, tuple[str, str]]] = {
    "{": ("open", "\\{"),
    "}": ("close", "\\}"),
    "%": ("op", "%"),
    "$": ("money", "$"),
    "#": ("op", "#"),
    "&": ("op", "&&"),
    "_": ("op", "_"),
    "|": ("op", "|"),
    "\\": ("sep", "\\\\"),
}
_SINGLE: Final[dict[str, tuple[str, str]]] = {
    **{sign: ("op", sign) for sign in "+-*/^_!%'|#@?\"&"},
    **{sign: ("open", sign) for sign in "([{"},
    **{sign: ("close", sign) for sign in ")]}"},
    **{sign: ("sep", sign) for sign in ",;:."},
    **{sign: ("rel", sign) for sign in "<>="},
    **{sign: ("money", sign) for sign in "$€£¥₹¢₽₩"},
}
_PAIRS: Final = {("<", "="): "<=", (">", "="): ">=", ("!", "="): "!=", ("=", "="): "=", ("=", ">"): "to"}


def _command(part: str) -> tuple[str, str]:
    name = part[1:]
    if name in _ESCAPED:
        return _ESCAPED[name]
    if name in _MAPPED:
        return _MAPPED[name]
    if name == "sqrt":
        return "cmd", name
    if name in _FUNCTIONS or name in _ALIASES:
        return "fn", _ALIASES.get(name, name)
    return "letter" if name in _GREEK else "cmd", name


def _word(part: str, in_text: bool) -> tuple[str, str]:
    if in_text:
        return "text", part
    if part in _FUNCTIONS or part in _ALIASES:
        return "fn", _ALIASES.get(part, part)
    return "letter" if len(part) == 1 else "word", part


_PLAIN, _QUOTED, _TEXTUAL, _VANISHING = range(4)
"""Of an open brace: an ordinary group; one inside \\text{}; those of \\text{} and \\boxed{} themselves, no tokens."""


def lex(text: str, limit: int = 4000) -> list[Token] | None:
    """The tokens of a cleaned answer, or None past ``limit`` of them."""
    tokens: list[Token] = []
    spaced = False
    braces: list[int] = []
    pending = ""  # what the next brace opens, by the command before it
    skip_from = -1  # tokens from here on are the argument of a dropped command
    for match in _TOKEN.finditer(text):
        kind, part = str(match.lastgroup), match[0]
        if kind == "space" or part == "~" or part in _SPACING:
            spaced = True
            continue
        if len(tokens) > limit:
            return None
        in_text = bool(braces) and braces[-1] in (_QUOTED, _TEXTUAL)
        if kind in ("num", "periodic", "dots"):
            entry = kind, part
        elif kind == "word":
            entry = _word(part, in_text)
        elif kind == "cmd":
            name = part[1:]
            pending = _OPENING.get(name, "")
            if pending or name in _DROPPED:
                continue
            entry = _command(part)
        elif part == "{":
            opened, pending = pending, ""
            if opened in ("text", "vanish"):
                braces.append(_TEXTUAL if opened == "text" or in_text else _VANISHING)
                continue
            braces.append(_QUOTED if in_text else _PLAIN)
            if opened == "skip":
                skip_from = len(tokens)
            entry = "open", "{"
        elif part == "}":
            if braces and braces.pop() in (_TEXTUAL, _VANISHING):
                continue
            if tokens and tokens[-1][:2] == ("open", "{") and skip_from < 0:
                tokens.pop()
                continue
            entry = "close", "}"
        else:
            entry = _SINGLE.get(part, ("op", part))
            if tokens and not spaced and _joined(tokens, part):
                continue
        tokens.append(Token(*entry, spaced))
        spaced = False
        if skip_from >= 0 and part == "}":
            del tokens[skip_from:]
            skip_from = -1
    return tokens


def _joined(tokens: list[Token], part: str) -> bool:
    """Merge a sign into the one before it: ``**``, ``<=``, ``!=``, ``=>``."""
    last = tokens[-1]
    if part == "*" and last.kind == "op" and last.text == "*":
        tokens[-1] = Token("op", "^", last.spaced)
        return True
    pair = _PAIRS.get((last.text, part)) if part in "=>" else None
    if pair is not None:
        tokens[-1] = Token("rel", pair, last.spaced)
    return pair is not None


def spell(tokens: list[Token]) -> str:
    """Tokens as one text, for the key of what could not be typed: spacing and fonts do not count."""
    return " ".join(token.text for token in tokens)
