"""Token lists by their outer shape: splitting at the top level, matching brackets, trimming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from corl.answers.lexer import Token
from corl.answers.vocabulary import words

__all__ = ["enclosed", "is_join", "join_thousands", "split", "trim"]

_LEADING: Final = words("about approximately approx around roughly exactly nearly is are equals")
_EDGE: Final = words(r". , ; : \\")


def _step(token: Token) -> int:
    if token.kind == "open" or (token.kind == "cmd" and token.text == "begin"):
        return 1
    return -1 if token.kind == "close" or (token.kind == "cmd" and token.text == "end") else 0


def split(tokens: Sequence[Token], at: Callable[[Token], bool]) -> tuple[list[list[Token]], list[Token]]:
    """The segments between the outermost tokens that satisfy ``at``, and those tokens."""
    segments: list[list[Token]] = [[]]
    found: list[Token] = []
    depth = 0
    for token in tokens:
        if depth == 0 and at(token):
            found.append(token)
            segments.append([])
            continue
        depth += _step(token)
        segments[-1].append(token)
    return segments, found


def is_join(token: Token) -> bool:
    """Whether a token joins the parts of a list: a comma, a semicolon, "and", "or"."""
    if token.kind == "sep":
        return token.text in ",;"
    return token.kind in ("word", "text") and token.text.lower() in ("and", "or", "lor", "land", "或", "和")


def enclosed(tokens: Sequence[Token]) -> bool:
    """Whether the first token opens a bracket that the last one closes, of whatever shape."""
    if len(tokens) < 2 or tokens[0].kind != "open" or tokens[-1].kind != "close":
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += _step(token)
        if depth == 0:
            return False
    return depth == 1


def trim(tokens: list[Token]) -> list[Token]:
    """Without outer plain braces, edge punctuation and a leading "=" or "about"."""
    start, end = 0, len(tokens)
    partners: dict[int, int] | None = None
    while start < end:
        first, last = tokens[start], tokens[end - 1]
        if first.text == last.text and first.text in ("^", "_") and end - start > 1:
            start, end = start + 1, end - 1  # Markdown, ** lexed as ^
        elif _closes_nothing(last):
            end -= 1
        elif _opens_nothing(first, alone=end - start == 1):
            start += 1
        elif (first.text == "{" and last.text == "}") or (first.text == "(" and last.text == ")" and end - start > 100):
            partners = partners if partners is not None else _partners(tokens)
            if partners.get(start) != end - 1 or _lists(tokens, start, end, partners):
                break  # {1, 2} is a set without its backslashes
            start, end = start + 1, end - 1
        else:
            break
    return tokens[start:end]


def _closes_nothing(last: Token) -> bool:
    return (last.kind == "sep" and last.text in _EDGE) or (
        last.kind == "op" and last.text in ("?", "*", "`", '"', "'", "\\", "^", "_")
    )


def _opens_nothing(first: Token, *, alone: bool) -> bool:
    if first.kind in ("word", "text"):
        return not alone and first.text.lower() in _LEADING
    return (
        (first.kind == "rel" and first.text in ("=", "~=", "sim"))
        or (first.kind == "sep" and first.text != ".")
        or (first.kind == "op" and first.text in ("*", "`", '"', "'", "\\"))
    )


def _partners(tokens: Sequence[Token]) -> dict[int, int]:
    """The position of each bracket's partner, opening to closing, of whatever shape."""
    stack: list[int] = []
    partners: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(at)
        elif token.kind == "close" and stack:
            partners[stack.pop()] = at
    return partners


def _lists(tokens: Sequence[Token], start: int, end: int, partners: dict[int, int]) -> bool:
    """Whether brackets directly hold a comma or semicolon."""
    at = start + 1
    while at < end - 1:
        if tokens[at].kind == "sep" and tokens[at].text in ",;":
            return True
        at = partners.get(at, at) + 1
    return False


def join_thousands(tokens: list[Token]) -> list[Token]:
    """Digit groups between commas as one number, where the grouping is valid and no list is meant.

    At the top level a run of numbers and unspaced commas is one number if *all* of it groups validly (``1,234,567``);
    within brackets, where commas separate, only if the brackets also hold a spaced comma (``(1,000, 2,000)``).
    """
    if not any(token.text == "," for token in tokens):
        return tokens
    spaced = _spaced_commas(tokens)
    result: list[Token] = []
    stack: list[int] = [-1]
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "open":
            stack.append(at if token.text != "{" else stack[-1])
        elif token.kind == "close" and len(stack) > 1:
            stack.pop()
        if token.kind == "num" and (stack[-1] < 0 or stack[-1] in spaced):
            end = at
            while (
                end + 2 < len(tokens)
                and tokens[end + 1].text == ","
                and not tokens[end + 1].spaced
                and tokens[end + 2].kind == "num"
                and not tokens[end + 2].spaced
            ):
                end += 2
            if end > at and _groups(tokens[at : end + 1 : 2]):
                text = "".join(part.text for part in tokens[at : end + 1 : 2])
                result.append(Token("num", text, token.spaced))
            else:
                result.extend(tokens[at : end + 1])
            at = end + 1
            continue
        result.append(token)
        at += 1
    return result


def _groups(parts: Sequence[Token]) -> bool:
    first, last = parts[0].text, parts[-1].text.partition(".")[0]
    return (
        first.isdigit()
        and len(first) <= 3
        and first[0] != "0"
        and all(part.text.isdigit() and len(part.text) == 3 for part in parts[1:-1])
        and len(last) == 3
        and last.isdigit()
    )


def _spaced_commas(tokens: Sequence[Token]) -> set[int]:
    """Positions of the opening brackets that directly hold a comma with a space after it."""
    found: set[int] = set()
    stack: list[int] = []
    for at, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(at)
        elif token.kind == "close" and stack:
            stack.pop()
        elif stack and token.text == "," and at + 1 < len(tokens) and tokens[at + 1].spaced:
            found.add(stack[-1])
    return found
