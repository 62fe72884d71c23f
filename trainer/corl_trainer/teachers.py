"""A teacher's judge, asked for the verdict on a step: every answer checked, failures retried, nothing made up.

`failed` items are asked again until the deadline: while a teacher's engine is down training pauses, and goes on by
itself once it is back. A problem without a label is an answer; a problem without a verdict is not, and never a zero.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corl.errors import JudgeDenied, JudgeError
from corl.wire import (
    Limits,
    Options,
    Policy,
    ProblemRollouts,
    Prompt,
    ScoredItem,
    ScoreItem,
    ScoresRequest,
    ScoresResponse,
    Task,
)
from corl_trainer.stops import ServiceGone

if TYPE_CHECKING:
    from corl.client import JudgeClient

__all__ = ["Teacher", "TeacherAnswer"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TeacherAnswer:
    """One item a problem, in order; `waited_s` for votes that were about to be filed."""

    items: list[ScoredItem]
    waited_s: float


@dataclass(frozen=True)
class Teacher:
    """`prompt` gives the text or the chat messages of a problem in the asker's view, `options` its options."""

    name: str
    judge: JudgeClient
    run: str
    task: Task
    prompt: Callable[[str], Prompt]
    options: Callable[[str], Options | None]
    policy: Policy
    limits: Limits
    deadline_s: float
    pause_s: float = 1.0

    def score(self, step: int, problems: Sequence[ProblemRollouts], *, histogram: bool) -> TeacherAnswer:
        """Raises ServiceGone if the call fails, the answer is wrong, or items still fail at the deadline."""
        end = time.monotonic() + self.deadline_s
        done: dict[str, ScoredItem] = {}
        waited = 0.0
        pause = self.pause_s
        while True:
            left = [problem for problem in problems if problem.problem_id not in done]
            failed: list[ScoredItem] = []
            for part in self._parts(left):
                request = self._request(step, part, histogram)
                response = self._ask(step, request, end)
                self._check(step, request, response)
                waited += response.waited_s
                for item in response.items:
                    if item.status == "failed":
                        failed.append(item)
                    else:
                        done[item.id] = item
            if not failed:
                return TeacherAnswer([done[problem.problem_id] for problem in problems], waited)
            self._give_up_or_warn(step, failed, len(problems), end)
            time.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, end - time.monotonic())))
            pause = min(pause * 2, 30.0)

    def _ask(self, step: int, request: ScoresRequest, end: float) -> ScoresResponse:
        try:
            return self.judge.scores(request, deadline_s=max(1.0, end - time.monotonic()))
        except JudgeDenied:
            raise
        except JudgeError as error:
            raise ServiceGone(f"teacher {self.name!r}, scores of step {step}: {error}") from error

    def _give_up_or_warn(self, step: int, failed: Sequence[ScoredItem], total: int, end: float) -> None:
        first = failed[0].failure
        said = f"{first.kind}: {first.message}" if first else "no reason given"
        what = f"teacher {self.name!r}, scores of step {step}: {len(failed)} of {total} problems failed ({said})"
        hopeless = [item for item in failed if item.failure is not None and item.failure.kind == "invalid"]
        if hopeless:
            raise ServiceGone(f"{what}; asking again would not help")
        if time.monotonic() >= end:
            raise ServiceGone(f"{what}, also after {self.deadline_s:g} s of retries")
        logger.warning("%s; asking again", what)

    def _parts(self, problems: Sequence[ProblemRollouts]) -> Iterator[list[ProblemRollouts]]:
        """Requests within the judge's limits."""
        part: list[ProblemRollouts] = []
        completions = size = 0
        for problem in problems:
            n = len(problem.completions)
            # JSON may write a character as six (\uXXXX); headers, ids and the prompt get a share of the room.
            bytes_ = 6 * sum(len(completion.text.encode()) for completion in problem.completions) + 8192
            full = (
                len(part) >= self.limits.max_items
                or completions + n > self.limits.max_completions
                or size + bytes_ > self.limits.max_body_bytes
            )
            if part and full:
                yield part
                part, completions, size = [], 0, 0
            part.append(problem)
            completions += n
            size += bytes_
        if part:
            yield part

    def _request(self, step: int, problems: Sequence[ProblemRollouts], histogram: bool) -> ScoresRequest:
        return ScoresRequest(
            items=[
                ScoreItem(
                    id=problem.problem_id,
                    problem_id=problem.problem_id,
                    prompt=self.prompt(problem.problem_id),
                    completions=[completion.text for completion in problem.completions],
                    task=self.task,
                    options=self.options(problem.problem_id),
                )
                for problem in problems
            ],
            policy=self.policy,
            run=self.run,
            step=step,
            histogram=histogram,
        )

    def _check(self, step: int, request: ScoresRequest, response: ScoresResponse) -> None:
        """That it is the verdict asked for; its shape and numbers are the client's to check."""

        def wrong(what: str) -> ServiceGone:
            return ServiceGone(f"teacher {self.name!r}, scores of step {step}: {what}")

        if (response.member, response.run, response.step) != (self.name, self.run, step):
            raise wrong(
                f"it answered for member {response.member!r}, run {response.run!r}, step {response.step}; asked was "
                f"member {self.name!r}, run {self.run!r}, step {step}"
            )
        asked = [(item.id, item.problem_id) for item in request.items]
        got = [(item.id, item.problem_id) for item in response.items]
        if got != asked:
            raise wrong(f"it answered for the items {got[:3]}..., asked were {asked[:3]}...")
