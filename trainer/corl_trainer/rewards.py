"""The reward callable that TRL calls: one for the whole batch, the same on every rank.

It is synchronous on purpose: it runs in the main thread in the same order on all ranks, so it may use collectives. The
main rank waits for the source's verdicts and hands them to the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from corl_trainer.phases import Phases
from corl_trainer.ranks import Ranks, main_does
from corl_trainer.sources import StepBatch, Verdicts

__all__ = ["IntrinsicReward", "QuietUnlabeled", "VoteReward"]


class VoteReward:
    """Rewards by votes. `finish`, `batch` (the step's rollouts) and `observe` are called on the main rank only."""

    def __init__(
        self,
        name: str,
        finish: Callable[[StepBatch], Verdicts],
        ranks: Ranks,
        batch: Callable[[], StepBatch],
        observe: Callable[[StepBatch, Verdicts], None],
        phases: Phases,
    ) -> None:
        self.__name__ = name  # TRL names the metric after it
        self._verdicts = finish
        self._ranks = ranks
        self._batch = batch
        self._observe = observe
        self._phases = phases

    def __call__(self, completion_ids: Sequence[list[int]], problem_id: Sequence[str], **_: Any) -> list[float | None]:
        with self._phases.measure("scores"):
            problems, given = main_does(self._ranks, self._finish)
        n = len(problem_id) * self._ranks.num_processes // len(problems)
        first = self._ranks.process_index * len(problem_id)
        flat: list[float | None] = []
        for place in range(first, first + len(problem_id)):
            group, sample = divmod(place, n)
            if problems[group] != problem_id[place - first]:
                raise RuntimeError(
                    f"reward of problem {problems[group]!r} for a completion of {problem_id[place - first]!r}"
                )
            rewards = given[group]
            flat.append(None if rewards is None else rewards[sample])
        return flat

    def _finish(self) -> tuple[list[str], list[list[float] | None]]:
        batch = self._batch()
        verdicts = self._verdicts(batch)
        self._phases.add("waiting", verdicts.waited_s)
        self._observe(batch, verdicts)
        return [problem.problem_id for problem in batch.problems], verdicts.rewards


class IntrinsicReward:
    """Rewards that the trainer's own forward pass left (entropy, certainty): each rank has those of its own rows."""

    def __init__(
        self,
        name: str,
        values: Callable[[], list[float]],
        ranks: Ranks,
        batch: Callable[[], StepBatch],
        observe: Callable[[StepBatch, Verdicts], None],
    ) -> None:
        self.__name__ = name
        self._values = values
        self._ranks = ranks
        self._batch = batch
        self._observe = observe

    def __call__(self, completion_ids: Sequence[list[int]], **_: Any) -> list[float | None]:
        from accelerate.utils import gather_object

        values = list(self._values())
        if len(values) != len(completion_ids):
            raise RuntimeError(f"{len(values)} intrinsic rewards for {len(completion_ids)} completions")
        everything = gather_object(values) if self._ranks.num_processes > 1 else values
        main_does(self._ranks, lambda: self._tell(everything))
        return list(values)

    def _tell(self, values: list[float]) -> None:
        batch = self._batch()
        n = len(values) // len(batch.problems)
        given: list[list[float] | None] = [values[i * n : (i + 1) * n] for i in range(len(batch.problems))]
        self._observe(batch, Verdicts(given, [None] * len(given)))


class QuietUnlabeled(logging.Filter):
    """Drops TRL's warning for rows without a reward: unlabeled problems are ordinary here and counted on their own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in str(record.msg)
