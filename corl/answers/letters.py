"""Letter runs outside ``\\text{}``: a product of symbols, a function name, or a plain word?"""

from __future__ import annotations

import re
from typing import Final

from corl.answers.cursor import NotMath
from corl.answers.vocabulary import words

__all__ = ["NAMES", "letters"]

MAX_WORD: Final = 24  # letters; longer runs are words
NAMES: Final = words("alpha beta gamma delta epsilon theta lambda sigma omega phi rho tau mu pi")
"""Symbols that are written out without a backslash."""
_SMALL_WORDS: Final = words(
    "yes no not and or the all any one two six ten odd even none true max min day red sum box old new is if of to in "
    "at by as on am pm an it we so up dne"
)
_INSIDE: Final = re.compile("arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi")
_VOWELS: Final = frozenset("aeiouAEIOU")


def letters(word: str) -> list[str]:
    """The symbols and function names of a letter run.

    Raises:
        NotMath: it reads as a plain word: a short one of a list, a capitalised one, or four letters and more with a
            vowel among them (unless in alphabetical order, as in ``abcd``).
    """
    if word in NAMES:
        return [word]
    if (
        len(word) > MAX_WORD
        or word.lower() in _SMALL_WORDS
        or (len(word) > 2 and word.istitle() and _VOWELS & set(word))
    ):
        raise NotMath(word)
    parts: list[str] = []
    at = 0
    while at < len(word):
        inside = _INSIDE.match(word, at)
        parts.append(inside[0] if inside else word[at])
        at += len(parts[-1])
    plain = all(len(part) == 1 for part in parts)
    if plain and len(word) > 3 and _VOWELS & set(word) and list(word) != sorted(set(word)):
        raise NotMath(word)
    if not plain and len(word) > 12:
        raise NotMath(word)
    return parts
