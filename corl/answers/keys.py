"""What an answer *is*: a hashable key over a typed normal form.

Two answers are the same answer exactly when their keys are equal, so "same" is an equivalence by construction, a
vote is a ``Counter`` of keys, and nothing is ever compared pairwise.

A key is a ``kind`` and a canonical ``form``; only these two enter equality and hash. Beside them lie *marks*: how
the answer was written. They never enter equality and exist for one purpose, the class-to-class attachments that a
vote makes once, after counting:

========== =====================================================================================================
percent    the answer was a percentage: ``50\\%`` is the rational 1/2, marked, with ``bare`` 50
unit       the unit, currency or counted noun as written (``cm``, ``$``, ``apples``). What has a *dimension* is typed
           (``5 m`` and ``5 cm`` are different quantities, ``2 hours`` and ``120 minutes`` the same one); currencies,
           degrees and counted nouns have none and are a mark only
decimals   places of ``value`` when the answer was written as a decimal: 0.333 has 3, 33.3\\% too
bare       the key of the answer with unit, percent, base or left-hand side left out, as written: 5 for ``5 cm``,
           52 for ``52_8``, 2x+1 for ``y=2x+1``. None where nothing was left out
========== =====================================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["AnswerKey"]

_RATIONAL: Final = re.compile(r"-?[0-9]{1,4000}(?:/[0-9]{1,4000})?")
_REAL: Final = re.compile(r"-?[0-9]\.[0-9]{1,60}e[+-]?[0-9]{1,6}")
_WIRE: Final = re.compile(r"([a-z]{1,12})(?:\[([^\[\]]*)\])?:")
_SAFE: Final = " !$'()*+,-./:<>?@^_{|}~"

_APPROX_DIGITS: Final = 40
MAX_NESTING: Final = 8  # of bare keys within bare keys


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The typed normal form of one answer. Made by :func:`corl.answers.key`; read back by :meth:`parse`.

    Kinds: ``q`` exact rational; ``f`` fingerprint of an irrational number or a symbolic expression; ``c`` complex
    number; ``inf``; ``quantity`` (a number with a dimension); ``base`` (digits in a named base); ``time``; ``ratio``;
    ``set`` (and a list, which keeps its repetitions), ``seq`` (with dots in it), ``tuple`` (a vector too, and an open
    interval, which is written alike), ``interval``, ``union``, ``matrix``, ``cases``; ``assign``, ``eq``, ``ineq``,
    ``mod``, ``system`` (relations); ``choice``; ``text``; ``raw`` (past the limits: equal only to the same text). A
    form longer than 512 characters is replaced by its SHA-256, so a key is small whatever it was made of.
    """

    kind: str
    form: str
    percent: bool = field(default=False, compare=False)
    unit: str | None = field(default=None, compare=False)
    decimals: int | None = field(default=None, compare=False)
    bare: AnswerKey | None = field(default=None, compare=False)

    @property
    def canonical(self) -> str:
        """``kind:form``, the wire form without marks: equal keys have equal ones. The order to sort keys by."""
        return f"{self.kind}:{self.form}"

    @property
    def value(self) -> Fraction | None:
        """The exact rational value; of a quantity, in the base units of its dimension. None for all else."""
        if self.kind == "q":
            number = self.form
        elif self.kind == "quantity":
            number = self.form.partition("|")[0]
        else:
            return None
        return Fraction(number) if _RATIONAL.fullmatch(number) else None

    @property
    def approx(self) -> Decimal | None:
        """The real value to 24 significant digits or more (rationals: 40); None for what is no real number."""
        value = self.value
        if value is not None:
            with localcontext() as context:
                context.prec = _APPROX_DIGITS
                return Decimal(value.numerator) / Decimal(value.denominator)
        number = self.form.partition("|")[0] if self.kind == "quantity" else self.form
        if self.kind in ("f", "quantity") and _REAL.fullmatch(number):
            return Decimal(number)
        return None

    def __str__(self) -> str:
        """The stable wire form, marks included; :meth:`parse` is its inverse."""
        marks = []
        if self.percent:
            marks.append("%")
        if self.unit is not None:
            marks.append("u=" + quote(self.unit, safe=_SAFE))
        if self.decimals is not None:
            marks.append(f"d={self.decimals}")
        if self.bare is not None:
            marks.append("b=" + quote(str(self.bare), safe=_SAFE))
        return f"{self.kind}[{';'.join(marks)}]:{self.form}" if marks else f"{self.kind}:{self.form}"

    @classmethod
    def parse(cls, text: str) -> AnswerKey:
        """Read a wire form back, marks included.

        Raises:
            ValueError: the text is not one that ``str(key)`` writes.
        """
        return cls._parse(text, MAX_NESTING)

    @classmethod
    def _parse(cls, text: str, nesting: int) -> AnswerKey:
        head = _WIRE.match(text)
        if head is None or nesting == 0:
            raise ValueError(f"answer key {text[:80]!r}: expected 'kind:form' or 'kind[marks]:form'")
        percent, unit, decimals, bare = False, None, None, None
        for mark in head[2].split(";") if head[2] is not None else ():
            if mark == "%":
                percent = True
            elif mark.startswith("u="):
                unit = unquote(mark[2:])
            elif mark.startswith("d=") and re.fullmatch(r"[0-9]{1,6}", mark[2:]):
                decimals = int(mark[2:])
            elif mark.startswith("b="):
                bare = cls._parse(unquote(mark[2:]), nesting - 1)
            else:
                raise ValueError(f"answer key {text[:80]!r}: unknown mark {mark[:40]!r}; known: %, u=, d=, b=")
        return cls(head[1], text[head.end() :], percent, unit, decimals, bare)
