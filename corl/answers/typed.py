"""The intermediate result of typing an answer: a key, with what the key leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from corl.answers.arith import Work
from corl.answers.keys import AnswerKey
from corl.answers.lexer import Token
from corl.answers.spans import Span, line_key, merge

__all__ = ["Typed", "Typer", "unite"]


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed piece of an answer, with what its key leaves out.

    ``name`` is the unknown whose value or range it is (``x`` in ``x = 5``), ``relation`` whether it is one (an
    inequality, an equation), ``spans`` the subset of the real line that it is, where it is one, ``members`` the values
    that a plus-minus stands for, so that a list of such values is one list.
    """

    key: AnswerKey
    name: str | None = None
    relation: bool = False
    spans: tuple[Span, ...] | None = None
    members: tuple[AnswerKey, ...] | None = None


class Typer(Protocol):
    """Types the parts of an answer for those who type its outer shape; all of one answer share one work limit."""

    work: Work

    def answer(self, tokens: list[Token]) -> Typed | None:
        """A list or a single answer; None when it must keep its text."""

    def member(self, tokens: list[Token]) -> Typed | None:
        """The same for a member of a list, which may be a short text."""


def unite(spans: Sequence[Span]) -> Typed:
    """The union of spans, as an interval, a finite set or a union key."""
    merged = merge(spans)
    return Typed(line_key(merged), spans=merged)
