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
from corl.answers.forms import build
from corl.answers.keys import AnswerKey
from corl.answers.mathkey import math_key
from corl.answers.text import text_key
from corl.answers.vocabulary import words

__all__ = ["Choices", "Options", "choice_key", "letters_of", "only", "starts_with_letter"]

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
    r"|\\[()\[\],;:! ]"
)
_SIGNS: Final = str.maketrans({**dict.fromkeys('{}$*`"_', " "), "、": ", ", "。": "."})
_SPECIES: Final = words("coli elegans aureus pylori thaliana melanogaster subtilis falciparum cerevisiae sapiens rex")
_ALONE: Final = re.compile(r"[\(\[]?\s?([A-Za-z0-9])\s?[\)\].:,;]{0,2}")
_JOINED: Final = re.compile(r"[,;/&+ ]|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|(?<=\))(?=\()")
_PART: Final = re.compile(r"[\(\[]?([A-Z0-9])[\)\]]?")
MAX_LISTED: Final = 16
_RUN: Final = re.compile(r"[A-Z]{2,15}")
_WITH_TEXT: Final = re.compile(
    r"(?:\(([A-Za-z0-9])\)|\[([A-Z0-9])\]|([A-Z])\s?[).:]|([A-Z])(?:[,!]\s|\s-\s|\s(?=(?:because|since)\s|is\s(?:the\s)?(?:correct|right|best)\b))"
    r"|([a-z])\)|([0-9])(?:\)|\.\s))\s?(\S.*)",
    re.DOTALL,
)
_AFTER: Final = re.compile(r"[\(\[]([A-Z])[\)\]]")
_NAMED: Final = re.compile(
    r"(?:(?:\b(?:option|choice|answer|letter)s?|选项?|答案|故选)\s?(?:(?:is|are)\b|[:：是为])?\s?)[\(\[]?([A-Z])(?![A-Za-z])[\)\]]?",
    re.IGNORECASE,
)


def _plain(answer: str) -> str:
    text = unicodedata.normalize("NFKC", printable(answer[:MAX_LENGTH]))
    text = _WRAPPERS.sub(" ", text).translate(_SIGNS)
    return re.sub(r"\s+", " ", text).strip(" '!")


def only(letters: str, choices: Choices) -> str | None:
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
        return only(alone[1], choices)
    listed = _listed(text, choices)
    if listed is not None:
        return listed
    if _RUN.fullmatch(text) and len(set(text)) == len(text) and (run := only(text, choices)) is not None:
        return run
    headed = _WITH_TEXT.fullmatch(text)
    if headed is not None and headed[7].strip(" .").lower() not in _SPECIES:
        letter = next(part for part in headed.groups() if part is not None)
        if (found := only(letter, choices)) is not None:
            return found
    trailing = set(_AFTER.findall(text))
    if len(trailing) == 1 and text.rstrip(" .").endswith((")", "]")):
        return only(trailing.pop(), choices)
    named = [match[1] for match in _NAMED.finditer(text) if match[1].isupper()]
    if named and (found := only(named[-1], choices)) is not None:
        return found
    return _by_text(text, choices)


def _listed(text: str, choices: Choices) -> str | None:
    """The letters of a list: ``A, C``, ``(A) and (C)``, ``(A)(C)``."""
    parts = [_PART.fullmatch(part) for part in _JOINED.split(text[:100]) if part]
    letters = [part[1] for part in parts if part is not None]
    if not 1 < len(parts) <= MAX_LISTED or len(letters) < len(parts) or len(text) > 100:
        return None
    return only("".join(letters), choices)


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


def starts_with_letter(line: str) -> bool:
    """Whether a line is a letter alone, or a letter with its option's text: ``(C)``, ``C. Pythagoras``."""
    text = _plain(line)
    return _ALONE.fullmatch(text) is not None or _WITH_TEXT.fullmatch(text) is not None


def choice_key(answer: str, options: Options | None = None) -> AnswerKey | None:
    """The key of an answer to a multiple-choice problem: its letters, or its text when it names no option."""
    letters = letters_of(answer, Choices.of(options))
    return build("choice", letters) if letters is not None else text_key(answer)
