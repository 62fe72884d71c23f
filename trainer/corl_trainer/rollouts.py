"""Rollouts of a step from the member's own judge: asked for in the step itself, or queued one step ahead as a job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corl.errors import JobFailed, JobGone, JobUnknown, JudgeError
from corl.wire import (
    JobRequest,
    Limits,
    Options,
    Problem,
    ProblemRollouts,
    RolloutsRequest,
    RolloutsResponse,
    Sampling,
    Task,
)
from corl_trainer.stops import ServiceGone

if TYPE_CHECKING:
    from corl.client import JudgeClient

__all__ = ["Asked", "JudgeRollouts"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A problem of a step, as the trainer tokenized it."""

    problem_id: str
    prompt_token_ids: list[int]
    options: Options | None = None


@dataclass
class JudgeRollouts:
    """Asks one judge, on the main rank. Every answer is checked before any of it is used.

    Raises ServiceGone where the judge answered something that cannot be trained on, JudgeError where the call failed.
    """

    judge: JudgeClient
    member: str
    run: str
    incarnation: int
    n: int
    sampling: Sampling
    task: Task
    limits: Limits
    vocab_size: int
    deadline_s: float

    def __post_init__(self) -> None:
        if self.n > self.limits.max_samples:
            raise ServiceGone(
                f"rollouts.n is {self.n} but judge {self.member!r} takes at most {self.limits.max_samples} samples a "
                "problem: lower rollouts.n or raise judge.max_samples"
            )
        self._queued: tuple[int, list[Asked], list[str]] | None = None

    def collect(self, step: int, asked: Sequence[Asked]) -> list[ProblemRollouts]:
        """n completions for each problem, in order: from the job queued for this step if there is one."""
        queued, self._queued = self._queued, None
        if queued is not None:
            queued_step, queued_asked, jobs = queued
            if (queued_step, queued_asked) == (step, list(asked)):
                try:
                    results = [self.judge.result(job, deadline_s=self.deadline_s) for job in jobs]
                    return self._finish(step, step - 1, results)
                except (JobUnknown, JobGone, JobFailed) as error:
                    logger.warning(
                        "step %d: the rollouts queued ahead are lost (%s); asking for them again", step, error
                    )
        requests = self._requests(step, asked, min_version=step)
        return self._finish(step, step, [self.judge.rollouts(r, deadline_s=self.deadline_s) for r in requests])

    def queue(self, step: int, asked: Sequence[Asked]) -> None:
        """Start sampling `step` with the weights of the step before it."""
        requests = self._requests(step, asked, min_version=step - 1)
        jobs = [
            self.judge.submit(JobRequest(kind="rollouts", request=request), deadline_s=self.deadline_s).id
            for request in requests
        ]
        self._queued = (step, list(asked), jobs)

    def drop_queued(self) -> None:
        """Withdraw what was queued and will not be collected."""
        queued, self._queued = self._queued, None
        if queued is None:
            return
        for job in queued[2]:
            try:
                self.judge.cancel(job, deadline_s=5.0)
            except JudgeError as error:
                logger.warning("job %s could not be withdrawn: %s", job, error)

    def _requests(self, step: int, asked: Sequence[Asked], min_version: int) -> list[RolloutsRequest]:
        size = self.limits.max_items
        return [
            RolloutsRequest(
                problems=[
                    Problem(problem_id=a.problem_id, prompt=a.prompt_token_ids, task=self.task, options=a.options)
                    for a in asked[begin : begin + size]
                ],
                n=self.n,
                sampling=self.sampling,
                run=self.run,
                step=step,
                incarnation=self.incarnation,
                min_version=min_version,
                deadline_s=self.deadline_s,
            )
            for begin in range(0, len(asked), size)
        ]

    def _finish(self, step: int, min_version: int, responses: Sequence[object]) -> list[ProblemRollouts]:
        """The answers as one, checked for what the client cannot know: whose they are, and of which weights."""
        found: list[ProblemRollouts] = []
        for response in responses:
            assert isinstance(response, RolloutsResponse), "the client checks that a job's result is of its kind"
            if response.member != self.member:
                raise self._wrong(step, f"it answered for member {response.member!r}")
            found.extend(response.problems)
        for problem in found:
            tag = problem.weights
            if tag.incarnation != self.incarnation or tag.version < min_version:
                raise self._wrong(
                    step,
                    f"problem {problem.problem_id!r} was sampled with the weights {tag.label()}, needed is incarnation "
                    f"{self.incarnation} and version {min_version} or newer",
                )
            if any(not 0 <= token < self.vocab_size for c in problem.completions for token in c.token_ids):
                raise self._wrong(
                    step, f"problem {problem.problem_id!r} has a token id outside the vocabulary of {self.vocab_size}"
                )
        return found

    def _wrong(self, step: int, what: str) -> ServiceGone:
        return ServiceGone(f"judge {self.member!r}, rollouts of step {step}: {what}")
