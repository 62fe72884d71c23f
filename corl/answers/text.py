"""Keys of answers in words, and of whatever could not be typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from corl.answers.clean import clean, printable
from corl.answers.forms import EMPTY, build
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token
from corl.answers.spans import REALS
from corl.answers.typed import Typed, unite

__all__ = ["long_key", "phrase", "text_key", "tokens_key"]

_WORDY: Final = frozenset({"word", "text", "letter", "sep", "num"})
_EDGE: Final = " .,;:!?\"'`*_()[]{}$\\"
_SPACES: Final = re.compile(r"\s+")
_MARKUP: Final = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|mathbf|emph|operatorname)(?![A-Za-z])\s?")
_SAME: Final = {
    "dne": "does not exist",
    "doesn't exist": "does not exist",
    "no solutions": "no solution",
    "no real solutions": "no real solution",
    "none of these": "none of the above",
    "indeterminate": "undefined",
}
_REALS: Final = frozenset(
    {"r", "all real numbers", "all reals", "the real numbers", "the set of all real numbers", "real numbers"}
)


def phrase(tokens: Sequence[Token]) -> Typed | None:
    """Answers that are one notion however written: the empty set, the reals."""
    if len(tokens) == 1 and tokens[0].kind == "sym" and tokens[0].text == "empty":
        return Typed(EMPTY, spans=())
    if tokens[0].kind == "cmd" and tokens[0].text == "mathbb":
        inner = "".join(token.text for token in tokens[1:] if token.kind not in ("open", "close"))
        if len(inner) == 1 and len(tokens) <= 4:
            return unite([REALS]) if inner == "R" else Typed(build("text", f"mathbb {inner}"))
        return None
    if len(tokens) == 3 and [token.text.lower() for token in tokens] == ["n", "/", "a"]:
        return Typed(build("text", "n/a"))
    if 1 < len(tokens) <= 6 and all(token.kind in ("word", "text", "letter") for token in tokens):
        said = " ".join(token.text.lower() for token in tokens)
        if said in _REALS:
            return unite([REALS])
        if said in ("empty set", "the empty set"):
            return Typed(EMPTY, spans=())
    return None


def tokens_key(tokens: Sequence[Token]) -> AnswerKey | None:
    """The text of tokens as a key: words regardless of case, everything else as it is; None when nothing is left."""
    parts = [token.text.casefold() if token.kind in ("word", "text") else token.text for token in tokens]
    wordy = all(token.kind in _WORDY for token in tokens)
    if wordy:
        parts = [part.casefold() for part in parts]
    text = " ".join(part for part in parts if part not in ("{", "}") or not wordy)
    return _key(text)


def text_key(answer: str) -> AnswerKey | None:
    """The key of an answer in words: case, spacing, edge punctuation and LaTeX text commands do not count."""
    if len(answer) > 20_000:
        return long_key(answer)
    return _key(_SPACES.sub(" ", _MARKUP.sub(" ", clean(answer))).casefold())


def _key(text: str) -> AnswerKey | None:
    text = _SPACES.sub(" ", text).strip(_EDGE)
    for article in ("the ", "a ", "an "):
        text = text.removeprefix(article)
    text = text.strip(_EDGE)
    if not text:
        return None
    return build("text", _SAME.get(text, text))


def long_key(answer: str) -> AnswerKey | None:
    """The key of a text past every limit: its hash, spacing apart; outer zeros of a numeral do not count."""
    text = "".join(printable(answer).split())
    if not text:
        return None
    if text.isdigit():
        text = text.lstrip("0") or "0"
    return AnswerKey("raw", f"#{sha256(text.encode()).hexdigest()}")
