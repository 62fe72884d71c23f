"""Held-out accuracy through the member's own judge: pass@1 and, with several samples, maj@k.

The only place where a label-free run reads answers, and those of held-out problems alone. The judge samples with
`purpose: eval`, so nothing of it is filed as a vote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corl.cohort import HeldOut
from corl.rewards import rewards, truth_vote
from corl.votes import attach, tally
from corl.wire import Completion, Limits, Options, Problem, Prompt, RolloutsRequest, Sampling, Task

if TYPE_CHECKING:
    from corl.client import JudgeClient

__all__ = ["Accuracy", "Evaluator"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares in 0..1. `maj` is the share of problems whose plurality is right (a tie is not); None with one sample."""

    pass_at_1: float
    maj: float | None
    samples: int
    problems: int
    mean_tokens: float

    def metrics(self) -> dict[str, float]:
        found = {"eval/pass@1": self.pass_at_1, "eval/mean_tokens": self.mean_tokens}
        if self.maj is not None:
            found[f"eval/maj@{self.samples}"] = self.maj
        return found


@dataclass(frozen=True)
class Evaluator:
    """One sample a problem is greedy; several are sampled at the rollouts' temperature."""

    judge: JudgeClient
    run: str
    incarnation: int
    problems: Sequence[HeldOut]
    prompt: Callable[[str], Prompt]
    task: Task
    options: Options | None
    samples: int
    max_tokens: int
    temperature: float
    limits: Limits
    deadline_s: float

    def run_at(self, version: int) -> Accuracy:
        """Raises JudgeError."""
        right = pluralities = tokens = 0.0
        for begin in range(0, len(self.problems), self.limits.max_items):
            part = self.problems[begin : begin + self.limits.max_items]
            for problem, completions in zip(part, self._sample(part, version), strict=True):
                answers = [completion.answer for completion in completions]
                options = problem.options or self.options
                truth = truth_vote(problem.answer, task=self.task, options=options)
                right += sum(r or 0.0 for r in rewards(answers, truth, task=self.task, options=options)) / self.samples
                pluralities += attach(tally(answers, task=self.task, options=options, min_parsed=1).key, truth)
                tokens += sum(len(completion.token_ids) for completion in completions) / self.samples
        count = len(self.problems)
        return Accuracy(
            pass_at_1=right / count,
            maj=pluralities / count if self.samples > 1 else None,
            samples=self.samples,
            problems=count,
            mean_tokens=tokens / count,
        )

    def _sample(self, problems: Sequence[HeldOut], version: int) -> list[list[Completion]]:
        request = RolloutsRequest(
            problems=[
                Problem(
                    problem_id=problem.problem_id,
                    prompt=self.prompt(problem.problem),
                    task=self.task,
                    options=problem.options or self.options,
                )
                for problem in problems
            ],
            n=self.samples,
            sampling=Sampling(max_tokens=self.max_tokens, temperature=self.temperature if self.samples > 1 else 0.0),
            run=self.run,
            step=version,
            incarnation=self.incarnation,
            purpose="eval",
            min_version=version,
            deadline_s=self.deadline_s,
        )
        response = self.judge.rollouts(request, deadline_s=self.deadline_s)
        return [found.completions for found in response.problems]
