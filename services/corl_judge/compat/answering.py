"""From a caller's sample to its verdict, and from errors to what its client stops or retries on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from corl.wire import Message, Prompt
from corl_judge.compat.coalesce import Coalescer, Judged, Question
from corl_judge.compat.options import Choice
from corl_judge.compat.rendered import looks_rendered, problem_of
from corl_judge.errors import Invalid, Problem
from corl_judge.service import Service

__all__ = ["Sample", "Unlabeled", "judged", "recovered"]


class Unlabeled(Problem):
    """The vote is no label, and the caller chose to hear of it as an error."""

    status, kind, title = 422, "unlabeled", "The judge's vote is no label"


@dataclass(frozen=True, slots=True)
class Sample:
    question: Question
    completion: str


async def judged(coalescer: Coalescer, samples: Sequence[Sample], choice: Choice) -> list[Judged]:
    """Verdicts in order; all of them, or the first error."""
    deadline = time.monotonic() + choice.deadline_s
    verdicts = await asyncio.gather(*(coalescer.judge(s.question, s.completion, deadline) for s in samples))
    if choice.on_unlabeled == "error":
        for verdict in verdicts:
            if verdict.reward is None:
                raise Unlabeled(
                    f"the vote is {verdict.vote.status!r}, with {verdict.vote.count} of {verdict.vote.parsed} answers: "
                    "leave the problem out, or take on_unlabeled=zero"
                )
    return verdicts


def recovered(
    service: Service,
    choice: Choice,
    template: re.Pattern[str] | None,
    prompt: str | list[Message],
    label: object,
    field: str,
) -> Question:
    """The problem behind a caller's prompt: the cohort file's by its id, else what the template holds, else the text.

    Raises Invalid naming the field and what to set.
    """
    if choice.label == "problem_id":
        return _known(service, choice, label)
    problem: Prompt | None = prompt
    if isinstance(prompt, str) and template is not None:
        problem = problem_of(prompt, template)
        if problem is None:
            raise Invalid.field(field, f"compat_template {service.settings.compat_template!r} does not fit it", prompt)
    elif isinstance(prompt, str) and looks_rendered(prompt):
        raise Invalid.field(
            field,
            "is already rendered in a chat template: set compat_template of this judge (--compat-template chatml), or "
            "put problem ids into the labels and set label=problem_id",
            prompt,
        )
    assert problem is not None
    return Question(problem, choice.task, choice.policy)


def _known(service: Service, choice: Choice, label: object) -> Question:
    texts = service.texts
    if texts.problems is None or texts.cohort is None:
        raise Invalid.field("label", "is to be a problem id, but this judge was started without a cohort file", label)
    facts = service.replica.facts
    assert facts is not None
    own = texts.own_prompt(str(label), chat=facts.chat_template)
    if own is None:
        raise Invalid.field("label", "is no problem id of this judge's cohort file", label)
    options = texts.problems.options(str(label)) or texts.cohort.problems.options
    pairs = tuple(options.items()) if isinstance(options, dict) else None if options is None else tuple(options)
    return Question(own, texts.cohort.problems.task, choice.policy, pairs)
