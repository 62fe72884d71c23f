"""Answers: what a completion answers (:func:`extract`), and what that answer is (:func:`key`).

Tasks: ``math``; ``choice`` (one or several of the letters, or letters with texts, in ``options``); ``text``.
All three functions are total: whatever a model wrote, they return in bounded time and memory, run no code and
raise nothing. They raise ``ValueError`` only for what the *caller* got wrong, an unknown task or malformed options.

From text to key: ``clean`` (Unicode to LaTeX), ``lexer``, then by outer shape ``listing``, ``relations``, ``brackets``,
``quantities``, ``expressions``; expressions are parsed (``syntax``) and evaluated (``evaluate``, ``arith``) exactly
where they are rational, to 60 digits at fixed points where not. What has no type keeps its text.

Conventions, where graders differ. Equal: a single unknown and its value (``x = 5``, ``5``); a list and a set
(``1, 2`` and ``{2, 1}``), a set of one and its member; a pair, a column vector and an open interval (they are written
alike); a percentage and its value; a number with and without currency, degree sign or counted noun; ``log`` and
``ln``. Different, and attached by a vote where that is safe: a quantity and its bare number (``5 cm``, ``5``), a
percentage and its bare number (``50%``, ``50``), a number in a base and its digits, an equation and its right-hand
side, a decimal and what it rounds. Symbols keep their case and words do not. Rounding is never equality.
"""

from __future__ import annotations

from typing import Final

from corl.answers.choice import Options, choice_key
from corl.answers.declared import extract_choice
from corl.answers.extraction import extract_math
from corl.answers.keys import AnswerKey
from corl.answers.mathkey import math_key
from corl.answers.text import text_key

__all__ = ["TASKS", "AnswerKey", "Options", "equivalent", "extract", "key"]

TASKS: Final = ("math", "choice", "text")


def extract(completion: str, task: str = "math", options: Options | None = None) -> str | None:
    """The answer a completion commits to, as written, or None when it commits to none.

    The last non-empty box after the last ``</think>``, else ``<answer>``, else what follows the last marker ("the
    answer is", "####", "答案是"). For ``choice`` the declared letters.

    Raises:
        ValueError: an unknown task, or malformed options.
    """
    if task == "choice":
        return extract_choice(completion, options)
    if task in TASKS:
        return extract_math(completion)
    raise _unknown(task)


def key(answer: str, task: str = "math", options: Options | None = None) -> AnswerKey | None:
    """The key of an answer as :func:`extract` returns it; None for a blank one.

    Raises:
        ValueError: an unknown task, or malformed options.
    """
    if task == "math":
        return math_key(answer)
    if task == "choice":
        return choice_key(answer, options)
    if task == "text":
        return text_key(answer)
    raise _unknown(task)


def equivalent(a: str, b: str, task: str = "math", options: Options | None = None) -> bool:
    """Whether two answers have equal keys; a blank equals nothing, not even another blank.

    Raises:
        ValueError: an unknown task, or malformed options.
    """
    left = key(a, task, options)
    return left is not None and left == key(b, task, options)


def _unknown(task: str) -> ValueError:
    return ValueError(f"task: {task!r} is unknown; one of {', '.join(TASKS)}")
