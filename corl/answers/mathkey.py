"""The key of an answer to a mathematical problem: clean, lex, type."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Final

from corl.answers.arith import Work
from corl.answers.brackets import bracketed, environment
from corl.answers.clean import clean
from corl.answers.expressions import expression_key, is_constant, plus_minus
from corl.answers.forms import EMPTY, set_key
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token, lex
from corl.answers.listing import listing
from corl.answers.quantities import quantity_key
from corl.answers.relations import congruence, is_relation, relation
from corl.answers.spans import Span, intersect, remove_points
from corl.answers.structure import is_join, join_thousands, split, trim
from corl.answers.text import long_key, phrase, tokens_key
from corl.answers.typed import Typed, unite

__all__ = ["math_key", "type_tokens"]

MAX_LENGTH: Final = 65_536
MAX_TOKENS: Final = 24_000
MAX_PIECE: Final = 12_000  # tokens of one member of a list
MAX_NESTING: Final = 12
_PLAIN: Final = re.compile(r"[+-]?[0-9]{1,150}(?:\.([0-9]{1,150}))?")


def math_key(answer: str) -> AnswerKey | None:
    """The key of a mathematical answer; None for a blank one."""
    text = answer.strip()
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        places = plain[1]
        if places is None:
            return AnswerKey("q", str(int(text)))
        return AnswerKey("q", str(Fraction(text)), decimals=len(places))
    if len(text) > MAX_LENGTH:
        return long_key(text)
    text = clean(text)
    if text.strip(" $") == "{}":
        return EMPTY
    tokens = lex(text, MAX_TOKENS)
    if tokens is None:
        return long_key(text)
    try:
        typed = type_tokens(tokens)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        typed = None  # a fault of ours costs this answer its type, never the vote that it is in
    return typed.key if typed is not None else tokens_key(trim(tokens))


def type_tokens(tokens: list[Token]) -> Typed | None:
    """The typed form of an answer's tokens; None when it must keep its text."""
    return _Typer().answer(join_thousands(tokens))


def _outward(tokens: list[Token]) -> list[Token]:
    """Intervals with brackets turned outward, ``]0, 1[``, the usual way round."""
    first, last = tokens[0].text, tokens[-1].text
    if first not in ("[", "]") or last not in ("[", "]") or (first == "[" and last == "]") or len(tokens) < 5:
        return tokens
    if any(token.text in ("[", "]") for token in tokens[1:-1]):
        return tokens
    opener, closer = ("(" if first == "]" else "["), (")" if last == "[" else "]")
    return [Token("open", opener, False), *tokens[1:-1], Token("close", closer, False)]


def _differences(tokens: list[Token]) -> list[Token]:
    """A minus sign between a set and braces is a difference of sets."""
    for at in range(1, len(tokens) - 1):
        if tokens[at].text == "-" and tokens[at + 1].text == "\\{" and tokens[at - 1].kind == "close":
            tokens = [*tokens[:at], Token("setop", "minus", False), *tokens[at + 1 :]]
    return tokens


class _Typer:
    """One answer being typed; counts how deep it nests."""

    def __init__(self) -> None:
        self.depth = 0
        self.work = Work()

    def answer(self, tokens: list[Token]) -> Typed | None:
        """A list or a single answer; None when it must keep its text."""
        self.depth += 1
        try:
            if self.depth > MAX_NESTING:
                return None
            tokens = trim(tokens)
            if not tokens:
                return None
            known = phrase(tokens)
            if known is not None:
                return known
            tokens = _outward(tokens)
            vector = self.angled(tokens)
            if vector is not None:
                return vector
            parts, joins = split(tokens, is_join)
            if joins:
                whole = quantity_key(tokens, self.work) if len(tokens) < 20 else None  # "2 hours and 30 minutes"
                return Typed(whole) if whole is not None else listing(parts, joins, self)
            return self.single(tokens)
        finally:
            self.depth -= 1

    def member(self, tokens: list[Token]) -> Typed | None:
        """A member of a list, which may be a short text."""
        typed = self.answer(tokens)
        if typed is None and len(tokens) <= 3:
            key = tokens_key(tokens)
            return Typed(key) if key is not None else None
        return typed

    def single(self, tokens: list[Token]) -> Typed | None:
        if len(tokens) > MAX_PIECE:
            return None
        if len(tokens) == 1 and tokens[0].kind == "dots":
            return Typed(AnswerKey("text", "..."))
        residue = congruence(tokens, self)
        if residue is not None and not any(map(is_relation, tokens)):
            return Typed(residue)
        if any(map(is_relation, tokens)) and split(tokens, is_relation)[1]:
            return relation(tokens, self)
        tokens = _differences(tokens)
        parts, signs = split(tokens, self.is_set_sign)
        if signs or (len(tokens) > 8 and (parts := self.united(tokens))):
            return self.combined(parts, [sign.text for sign in signs] or ["cup"] * (len(parts) - 1))
        for read in (bracketed, environment):
            typed = read(tokens, self)
            if typed is not None:
                return typed
        point = self.point(tokens)
        if point is not None:
            return point
        quantity = quantity_key(tokens, self.work)
        if quantity is not None:
            return Typed(quantity)
        both = plus_minus(tokens, self.work)
        if both is not None:
            return Typed(set_key(both, distinct=True), members=both)
        key = expression_key(tokens, self.work)
        return (
            Typed(key, spans=(Span(key, True, key, True),) if is_constant(key) else None) if key is not None else None
        )

    @staticmethod
    def is_set_sign(token: Token) -> bool:
        return token.kind == "setop"

    @staticmethod
    def united(tokens: list[Token]) -> list[list[Token]]:
        """The parts of ``(1,2) U (3,4)``, a union typed with a letter; empty when it is none."""
        parts, signs = split(tokens, lambda token: token.text in ("U", "union", "∪") and token.kind != "close")
        if not signs or not all(part and part[0].kind == "open" and part[-1].kind == "close" for part in parts):
            return []
        return parts

    def point(self, tokens: list[Token]) -> Typed | None:
        """A named point: ``A(1, 2)``."""
        if len(tokens) < 6 or tokens[0].kind not in ("letter", "text") or not tokens[0].text.isupper():
            return None
        typed = bracketed(tokens[1:], self)
        if typed is None or typed.key.kind != "tuple":
            return None
        return replace(typed, name=tokens[0].text, relation=True)

    def angled(self, tokens: list[Token]) -> Typed | None:
        """A vector between less-than and greater-than signs: ``<1, 2>``."""
        first, last = tokens[0], tokens[-1]
        if first.text != "<" or last.text != ">" or first.kind != "rel" or last.kind != "rel":
            return None
        if not any(token.text == "," for token in tokens):
            return None
        inner = [Token("open", "<", False), *tokens[1:-1], Token("close", ">", False)]
        return bracketed(inner, self)

    def combined(self, parts: list[list[Token]], signs: list[str]) -> Typed | None:
        """Unions, intersections and differences of subsets of the real line."""
        typed = [self.answer(part) for part in parts]
        spans = [one.spans if one is not None else None for one in typed]
        result = spans[0]
        for sign, other in zip(signs, spans[1:], strict=True):
            if result is None or other is None:
                return None
            if sign == "cup":
                result = (*result, *other)
            elif sign == "cap":
                result = intersect(result, other)
            elif all(span.low == span.high for span in other):
                result = remove_points(result, [span.low for span in other])
            else:
                return None
        if result is None:
            return None
        return unite(result) if result else Typed(EMPTY, spans=())
