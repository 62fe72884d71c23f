"""What is wrong with a file: where, which field, which value, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = ["Fault", "nearest"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `field` is dotted (`members.a.model`), `line` counts from 1."""

    message: str
    field: str | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = self.file or ""
        if self.line is not None:
            where = f"{where}:{self.line}" if where else f"line {self.line}"
        return ": ".join(part for part in (where, self.field, self.message) if part)


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name: the nearest known one, or all of them."""
    names = list(known)
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"one of: {', '.join(names)}" if names else "there is none"
