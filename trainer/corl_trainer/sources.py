"""Where a step's rewards come from: one class a source, on the main rank, without torch.

A source gets the step's rollouts and gives a reward for every completion of a problem, or None for a problem without
a label. `begin` starts what can overlap with the trainer's forward pass, `finish` waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from corl.cohort import VotePolicy
from corl.histogram import Histogram
from corl.rewards import collective, combine, rewards, truth_vote
from corl.votes import Vote, tally
from corl.wire import Options, ProblemRollouts, ScoredItem, Task
from corl.wire_votes import from_wire, histogram_from_wire
from corl_trainer.stops import ServiceGone
from corl_trainer.teachers import Teacher, TeacherAnswer

__all__ = ["Collective", "OwnVote", "PeerVotes", "Source", "StepBatch", "Truth", "Verdicts"]


@dataclass(frozen=True)
class StepBatch:
    """A step's rollouts, in the order of the schedule."""

    step: int
    problems: list[ProblemRollouts]

    def answers(self, problem: ProblemRollouts) -> list[str | None]:
        return [completion.answer for completion in problem.completions]


@dataclass(frozen=True)
class Verdicts:
    """One entry a problem. `labels` holds the vote that rewarded; `rewards` None where it was no label.

    `fresh` counts votes that a teacher had to sample for us; `waited_s` is how long teachers waited for their trainers.
    """

    rewards: list[list[float] | None]
    labels: list[Vote | None]
    fresh: int = 0
    waited_s: float = 0.0


class Source(Protocol):
    def begin(self, batch: StepBatch) -> None: ...

    def finish(self, batch: StepBatch) -> Verdicts: ...


@dataclass(frozen=True)
class Rules:
    """How answers become votes: the cohort's policy, and each problem's own options."""

    policy: VotePolicy
    task: Task
    options: Callable[[str], Options | None]
    _last: dict[int, list[Vote]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def own_votes(self, batch: StepBatch) -> list[Vote]:
        """The votes of a member's own completions, under the trainer's policy; counted once a step."""
        if batch.step not in self._last:
            votes = [
                tally(
                    batch.answers(problem),
                    task=self.task,
                    options=self.options(problem.problem_id),
                    threshold=self.policy.threshold,
                    ties=self.policy.ties,
                    min_parsed=self.policy.min_parsed,
                )
                for problem in batch.problems
            ]
            self._last.clear()
            self._last[batch.step] = votes
        return self._last[batch.step]

    def reward(self, batch: StepBatch, problem: ProblemRollouts, vote: Vote) -> list[float] | None:
        given = rewards(batch.answers(problem), vote, task=self.task, options=self.options(problem.problem_id))
        return [float(r) for r in given if r is not None] if vote.labeled else None


@dataclass
class _AsksTeachers:
    """Asks every teacher about the whole step at once, each in a thread of its own."""

    teachers: Mapping[str, Teacher]
    rules: Rules
    _asked: dict[str, Future[TeacherAnswer]] = field(default_factory=dict, init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)
    histogram = False

    def begin(self, batch: StepBatch) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(1, len(self.teachers)), thread_name_prefix="corl-scores")
        self._asked = {
            name: self._pool.submit(teacher.score, batch.step, batch.problems, histogram=self.histogram)
            for name, teacher in self.teachers.items()
        }

    def _answers(self) -> dict[str, TeacherAnswer]:
        asked, self._asked = self._asked, {}
        return {name: future.result() for name, future in asked.items()}


class PeerVotes(_AsksTeachers):
    """Co-RL: the teacher's vote; with several teachers the strict plurality of their votes."""

    def finish(self, batch: StepBatch) -> Verdicts:
        answers = self._answers()
        given: list[list[float] | None] = []
        labels: list[Vote | None] = []
        for place, problem in enumerate(batch.problems):
            items = {name: answer.items[place] for name, answer in answers.items()}
            label = combine(_vote(name, item) for name, item in items.items())
            labels.append(label)
            if len(items) == 1:
                (item,) = items.values()
                given.append(item.rewards)
            else:
                given.append(self.rules.reward(batch, problem, label))
        return _verdicts(given, labels, answers)


class Collective(_AsksTeachers):
    """The vote of all members' answers pooled, the own ones included."""

    histogram = True

    def finish(self, batch: StepBatch) -> Verdicts:
        answers = self._answers()
        given: list[list[float] | None] = []
        labels: list[Vote | None] = []
        for place, problem in enumerate(batch.problems):
            options = self.rules.options(problem.problem_id)
            pooled = {"": Histogram.of(batch.answers(problem), self.rules.task, options)}
            for name, answer in answers.items():
                pooled[name] = _histogram(name, answer.items[place])
            label = collective(pooled, threshold=self.rules.policy.threshold)
            labels.append(label)
            given.append(self.rules.reward(batch, problem, label))
        return _verdicts(given, labels, answers)


@dataclass
class OwnVote:
    """TTRL: the member's own vote."""

    rules: Rules

    def begin(self, batch: StepBatch) -> None:
        pass

    def finish(self, batch: StepBatch) -> Verdicts:
        labels = self.rules.own_votes(batch)
        given = [self.rules.reward(batch, p, label) for p, label in zip(batch.problems, labels, strict=True)]
        return Verdicts(given, list(labels))


@dataclass
class Truth:
    """The right answers, by problem id. The only source that holds any."""

    rules: Rules
    answer: Callable[[str], str]

    def begin(self, batch: StepBatch) -> None:
        pass

    def finish(self, batch: StepBatch) -> Verdicts:
        labels = [
            truth_vote(
                self.answer(problem.problem_id),
                task=self.rules.task,
                options=self.rules.options(problem.problem_id),
            )
            for problem in batch.problems
        ]
        given = [self.rules.reward(batch, p, label) for p, label in zip(batch.problems, labels, strict=True)]
        return Verdicts(given, list(labels))


def _vote(teacher: str, item: ScoredItem) -> Vote:
    """The vote of a verdict that was checked to have one."""
    assert item.vote is not None
    try:
        return from_wire(item.vote)
    except ValueError as error:
        raise ServiceGone(f"teacher {teacher!r}, problem {item.problem_id!r}: a malformed vote: {error}") from error


def _histogram(teacher: str, item: ScoredItem) -> Histogram:
    assert item.vote is not None
    try:
        histogram = histogram_from_wire(item.vote)
    except ValueError as error:
        raise ServiceGone(
            f"teacher {teacher!r}, problem {item.problem_id!r}: a malformed histogram: {error}"
        ) from error
    if histogram is None:
        raise ServiceGone(
            f"teacher {teacher!r}, problem {item.problem_id!r}: it sent no histogram, which was asked for"
        )
    return histogram


def _verdicts(
    given: list[list[float] | None], labels: list[Vote | None], answers: Mapping[str, TeacherAnswer]
) -> Verdicts:
    fresh = sum(
        1
        for answer in answers.values()
        for item in answer.items
        if item.vote is not None and item.vote.source == "fresh"
    )
    waited = max((answer.waited_s for answer in answers.values()), default=0.0)
    return Verdicts(given, labels, fresh, waited)
