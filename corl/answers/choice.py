"""Multiple choice: which of the options an answer or a completion names.

The options come from the caller and are never guessed: guessing makes letters of "D is the midpoint of AC" and
"e.g. 5". A letter in prose counts only where it is declared, and only in upper case unless it stands alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from corl.answers.clean import printable
from corl.answers.extraction import MARKER_WINDOW, boxed, tail
from corl.answers.forms import build
from corl.answers.keys import AnswerKey
from corl.answers.mathkey import math_key
from corl.answers.text import text_key
from corl.answers.vocabulary import words

__all__ = ["Options", "choice_key", "extract_choice"]

Options = str | Sequence[str] | Mapping[str, str]
"""The options of one problem: letters (``"ABCD"``, ``["A", "B"]``) or letters with their texts (``{"A": "4 cm"}``)."""

DEFAULT_LETTERS: Final = "ABCDEFGHIJ"
MAX_LENGTH: Final = 2_000


@dataclass(frozen=True)
class Choices:
    """Checked options: the letters in order, and the texts where known."""

    letters: str
    texts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: Options | None) -> Choices:
        """Check what the caller gave.

        Raises:
            ValueError: an option is not named by one letter or digit, or two have the same name.
        """
        if options is None:
            return cls(DEFAULT_LETTERS)
        names = [str(name).strip().upper() for name in options]
        wrong = next((name for name in names if len(name) != 1 or not name.isalnum()), None)
        if wrong is not None:
            raise ValueError(
                f"options: {wrong[:40]!r} names no option; give letters ('ABCD') or letters with texts ({{'A': '...'}})"
            )
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"options: {''.join(names)!r} must name at least one option and each only once")
        if isinstance(options, Mapping):
            return cls("".join(names), tuple(zip(names, (str(text) for text in options.values()), strict=True)))
        return cls("".join(names))


_WRAPPERS: Final = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textrm|textit|mathrm|mathbf|mathbb|mathsf|mbox|bf|rm|left|right|displaystyle)(?![A-Za-z])\s?"
)
_SPECIES: Final = words("coli elegans aureus pylori thaliana melanogaster subtilis falciparum cerevisiae sapiens rex")
_LETTER: Final = r"[\(\[]?\s?[A-Z0-9]\s?[\)\].:]?"
_ALONE: Final = re.compile(r"[\(\[]?\s?([A-Za-z0-9])\s?[\)\].:,;]{0,2}")
_LIST: Final = re.compile(
    rf"{_LETTER}(?:(?:\s?[,;/&+]\s?(?:and\s)?|\s(?:and|or)\s|\s){_LETTER}){{1,15}}|(?:\([A-Z]\)\s?){{2,15}}"
)
_RUN: Final = re.compile(r"[A-Z]{2,15}")
_WITH_TEXT: Final = re.compile(
    r"(?:\(([A-Za-z0-9])\)|\[([A-Z0-9])\]|([A-Z])\s?[).:]|([0-9]|[a-z])(?:\)|\.\s))\s?(\S.*)", re.DOTALL
)
_AFTER: Final = re.compile(r"[\(\[]([A-Z])[\)\]]")
_NAMED: Final = re.compile(
    r"(?:(?:\b(?:option|choice|answer)s?|选项?|答案|故选)\s?(?:(?:is|are)\b|[:：是为])?\s?)[\(\[]?([A-Z])(?![A-Za-z])[\)\]]?",
    re.IGNORECASE,
)


def _plain(answer: str) -> str:
    text = unicodedata.normalize("NFKC", printable(answer[:MAX_LENGTH]))
    text = (
        _WRAPPERS.sub(" ", text).translate({ord(sign): " " for sign in '{}$*`"_'}).replace("、", ",").replace("。", ".")
    )
    return re.sub(r"\s+", " ", text).strip(" ")


def _only(letters: str, choices: Choices) -> str | None:
    """Letters in order and once each, if all of them are options."""
    found = sorted(set(letters.upper()), key=lambda letter: choices.letters.find(letter))
    return "".join(found) if found and all(letter in choices.letters for letter in found) else None


def letters_of(answer: str, choices: Choices) -> str | None:
    """The option letters that an answer names: ``C``, ``(c)``, ``C. text``, ``90 degrees (D)``, ``A and C``."""
    text = _plain(answer)
    if not text:
        return None
    alone = _ALONE.fullmatch(text)
    if alone is not None:
        return _only(alone[1], choices)
    if _LIST.fullmatch(text):
        listed = _only("".join(re.findall(r"(?<![A-Za-z0-9])[A-Z0-9](?![A-Za-z0-9])", text)), choices)
        if listed is not None:
            return listed
    if _RUN.fullmatch(text) and len(set(text)) == len(text) and (run := _only(text, choices)) is not None:
        return run
    headed = _WITH_TEXT.fullmatch(text)
    if headed is not None and headed[5].strip(" .").lower() not in _SPECIES:
        letter = next(part for part in headed.groups() if part is not None)
        if (found := _only(letter, choices)) is not None:
            return found
    trailing = set(_AFTER.findall(text))
    if len(trailing) == 1 and text.rstrip(" .").endswith((")", "]")):
        return _only(trailing.pop(), choices)
    named = [match[1] for match in _NAMED.finditer(text) if match[1].isupper()]
    if named and (found := _only(named[-1], choices)) is not None:
        return found
    return _by_text(text, choices)


@lru_cache(maxsize=256)
def _text_keys(choices: Choices) -> tuple[tuple[str, AnswerKey | None, AnswerKey | None], ...]:
    return tuple((letter, math_key(text), text_key(text)) for letter, text in choices.texts)


def _by_text(answer: str, choices: Choices) -> str | None:
    """The one option whose text is this answer."""
    if not choices.texts:
        return None
    value, said = math_key(answer), text_key(answer)
    if value is None:
        return None
    found = [letter for letter, as_math, as_text in _text_keys(choices) if as_math == value or as_text == said]
    return found[0] if len(found) == 1 else None


def choice_key(answer: str, options: Options | None = None) -> AnswerKey | None:
    """The key of an answer to a multiple-choice problem: its letters, or its text when it names no option."""
    letters = letters_of(answer, Choices.of(options))
    return build("choice", letters) if letters is not None else text_key(answer)


_QUOTES: Final = r"[\s*_(\[{\"'`$]{0,8}"
_DECLARED: Final = re.compile(
    rf"""(?:\b(?:(?:final|correct|best|right)\s)?(?:answer|option|choice)s?\b|\bchoose\b|\bselect\b|\bpick\b|答案|故选|应选|选择|选项?)
    [*_]{{0,3}}\s{{0,2}}
    (?:(?:is|are|should\sbe|seems\sto\sbe|would\sbe|must\sbe|be|option|choice|letter|therefore|thus|:|：|=|是|为|应为|应是|应|选)[*_\s]{{0,4}}){{0,4}}
    {_QUOTES}(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s?\{{\s?\(?){{0,2}}
    ((?:[A-Z](?:\s?,\s?(?:and\s)?|\s(?:and|&)\s|(?=[A-Z]))){{0,9}}[A-Za-z0-9])(?![A-Za-z0-9_'])""",
    re.VERBOSE | re.IGNORECASE,
)
_CONTINUES: Final = re.compile(
    r"\s(?!(?:because|since|as|is|and|or|which|with|for|by|due|given|but|so|in|on|that)\b)[a-z]"
)
_ENDS: Final = re.compile(r"\s?[.,;:)\]}*_\"'`$]{0,6}(?:\s*$|\s*\n|\s)|$")


def extract_choice(completion: str, options: Options | None = None) -> str | None:
    """The option letters a completion declares (``B``, ``AC``), or the content of its box; None without either."""
    choices = Choices.of(options)
    text = tail(completion)
    content, seen = boxed(text)
    if content is not None:
        return letters_of(content, choices) or content
    if seen:
        return None
    text = unicodedata.normalize("NFKC", text[-MARKER_WINDOW:])
    for match in reversed(list(re.finditer(r"<answer>(.{1,600}?)(?:</answer>|$)", text, re.DOTALL | re.IGNORECASE))):
        return letters_of(match[1], choices) or match[1].strip() or None
    for match in reversed(list(_DECLARED.finditer(text))):
        letters = _declared(match, text, choices)
        if letters is not None:
            return letters
    last = next((line for line in reversed(text.split("\n")) if line.strip()), "")
    if len(last) < 400 and (_ALONE.fullmatch(_plain(last)) or _WITH_TEXT.fullmatch(_plain(last))):
        return letters_of(last, choices)
    return None


def _declared(match: re.Match[str], text: str, choices: Choices) -> str | None:
    """The letters of a declaration, unless they are words: "the answer is a car", "Answer: I computed"."""
    letters = "".join(re.findall("[A-Za-z0-9]", re.sub(r"\b(?:and)\b", "", match[1], flags=re.IGNORECASE)))
    after = text[match.end() : match.end() + 30]
    if len(letters) > 1 and not letters.isupper():
        return None
    if letters.islower() and (match[1] in ("a", "i") or True) and not _ENDS.match(after):
        return None
    if letters.islower() and after[:1] == " " and not after[1:].lstrip().startswith("\n"):
        return None
    if letters in ("A", "I") and _CONTINUES.match(after):
        return None
    return _only(letters, choices)
