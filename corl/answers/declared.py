"""The option letters that a completion declares for its answer."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from corl.answers.choice import Choices, Options, letters_of, only, starts_with_letter
from corl.answers.extraction import MARKER_WINDOW, boxed, marked, tagged, tail

__all__ = ["extract_choice"]

_QUOTES: Final = r"[\s*_(\[{\"'`$]{0,8}"
_LETTERS: Final = r"((?-i:(?:[A-Z](?:\s?,\s?(?:and\s)?|\s(?:and|&)\s|(?=[A-Z]))){0,9}[A-Z0-9]|[a-z]))(?!\w|'[a-z])"
_DECLARED: Final = re.compile(
    rf"""(?:\b(?:(?:final|correct|best|right)\s)?(?:answer|option|choice)s?\b|\b(?:choose|select|pick|go\swith)\b
        |答案|故选|应选|选择|选项?)
    [*_]{{0,3}}\s{{0,2}}
    (?:(?:is|are|(?:should|would|must|seems\sto)\sbe|be|option|choice|letter|therefore|thus|:|：|=|是|为|应为|应是|应|选)
        [*_\s]{{0,4}}){{0,4}}
    {_QUOTES}(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s?\{{\s?\(?){{0,2}}
    {_LETTERS}
    |(?:^|[\s(*])(?-i:([A-Z]))\)?[*_]{{0,3}}\s(?:is|must\sbe)\s(?:the\s)?(?:correct|right|best)\b
    |(?:^|[.\n]\s{{0,3}})(?:so|thus|therefore|hence),?\s[(*]{{0,3}}(?-i:([A-Z]))[)*]{{0,3}}\.?\s{{0,3}}$""",
    re.VERBOSE | re.IGNORECASE,
)
_WORD_FOLLOWS: Final = re.compile(
    r"\s(?!(?:because|since|as|is|and|or|which|with|for|by|due|given|but|so|in|on|that)\b)[a-z]"
)
_ENDS: Final = re.compile(r"[.,;:)\]}*_\"'`$]{0,6}\s{0,3}(?:\n|$)|[.,;)\]]\s")


def extract_choice(completion: str, options: Options | None = None) -> str | None:
    """The option letters a completion declares (``B``, ``AC``), or the content of its box; None without either.

    Raises:
        ValueError: malformed options.
    """
    choices = Choices.of(options)
    text = tail(completion)
    content, seen = boxed(text)
    if content is None and not seen:
        content = tagged(text)
    if content is not None or seen:
        return content and (letters_of(content, choices) or content)
    text = unicodedata.normalize("NFKC", text[-MARKER_WINDOW:])
    for match in reversed(list(_DECLARED.finditer(text))):
        letters = _declared(match, text, choices)
        if letters is not None:
            return letters
    last = next((line for line in reversed(text.split("\n")) if line.strip()), "")
    if len(last) < 400 and starts_with_letter(last):
        return letters_of(last, choices)
    said = marked(text) if choices.texts else None
    return letters_of(said, choices) if said is not None else None


def _declared(match: re.Match[str], text: str, choices: Choices) -> str | None:
    """The letters of a declaration, unless they are words: "the answer is a car", "Answer: I computed"."""
    letters = next(part for part in match.groups() if part is not None).replace("and", "")
    letters = "".join(filter(str.isalnum, letters))
    after = text[match.end() : match.end() + 30]
    if letters.islower() and not _ENDS.match(after):
        return None
    if letters in ("A", "I") and _WORD_FOLLOWS.match(after) and match[1] is not None:
        return None
    return only(letters, choices)
