"""A position in a token list, for the parser."""

from __future__ import annotations

from typing import Final

from corl.answers.arith import TooHard
from corl.answers.lexer import Token

__all__ = ["Cursor", "NotMath"]

MAX_DEPTH: Final = 60


class NotMath(Exception):
    """These tokens are no expression."""


class Cursor:
    """Reads tokens one by one, and counts how deep the reader has nested."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = list(tokens)
        self.at = 0
        self.depth = 0

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise NotMath("end")
        self.at += 1
        return token

    def see(self, kind: str, text: str) -> bool:
        token = self.peek()
        return token is not None and token.kind == kind and token.text == text

    def accept(self, kind: str, text: str) -> bool:
        if self.see(kind, text):
            self.at += 1
            return True
        return False

    def expect(self, kind: str, text: str) -> None:
        if not self.accept(kind, text):
            raise NotMath(f"no {text}")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooHard("depth")

    def argument(self) -> list[Token]:
        """The raw tokens of a LaTeX argument: a group's content, or one token."""
        if not self.accept("open", "{"):
            return [self.take()]
        start, depth = self.at, 1
        while depth:
            token = self.take()
            depth += (token.kind == "open" and token.text == "{") - (token.kind == "close" and token.text == "}")
        return self.tokens[start : self.at - 1]
