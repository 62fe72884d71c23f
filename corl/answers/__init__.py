"""Answers: what a completion answers (:func:`extract`), and what that answer is (:func:`key`).

Tasks: ``math``; ``choice`` (one or several of the letters, or letters with texts, in ``options``); ``text``.
All three functions are total: whatever a model wrote, they return in bounded time and memory, run no code and
raise nothing. They raise ``ValueError`` only for what the *caller* got wrong, an unknown task or malformed options.
"""

from __future__ import annotations

from corl.answers.choice import Options
from corl.answers.keys import AnswerKey

__all__ = ["AnswerKey", "Options", "equivalent", "extract", "key"]

TASKS = ("math", "choice", "text")


def extract(completion: str, task: str = "math", options: Options | None = None) -> str | None:
    """The answer a completion commits to, as written, or None when it commits to none."""
    from corl.answers.extraction import extract_answer

    return extract_answer(completion, task, options)


def key(answer: str, task: str = "math", options: Options | None = None) -> AnswerKey | None:
    """The key of an answer as :func:`extract` returns it; None for a blank one."""
    text = " ".join(answer.split())
    return AnswerKey("text", text.casefold()) if text else None


def equivalent(a: str, b: str, task: str = "math", options: Options | None = None) -> bool:
    """Whether two answers have equal keys; a blank equals nothing, not even another blank."""
    left = key(a, task, options)
    return left is not None and left == key(b, task, options)
