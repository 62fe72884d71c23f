"""Which problems at which step: a pure function of the problem ids, the data seed and the step.

Members meet on a problem only if all of them take the same ids at the same step, whatever their own seeds, ranks,
restarts or library versions. So the order of an epoch is that of SHA-256 over (data seed, epoch, problem id): it needs
no random generator, whose stream may change between versions, and does not depend on the order of rows in a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """`problem_ids` distinct, in any order; `per_step` problems a step.

    A step lies within one epoch, so no problem comes twice in it: the len(problem_ids) % per_step problems that remain
    at the end of an epoch are left out of it (others in every epoch). Raises ValueError if there are too few problems.
    """

    problem_ids: Sequence[str]
    data_seed: int
    per_step: int
    _epochs: dict[int, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.per_step < 1:
            raise ValueError(f"problems_per_step is {self.per_step}: it must be 1 or more")
        if len(set(self.problem_ids)) != len(self.problem_ids):
            raise ValueError("a problem id appears twice among the training problems: ids must be unique")
        if len(self.problem_ids) < self.per_step:
            raise ValueError(
                f"problems_per_step is {self.per_step} but there are {len(self.problem_ids)} training problems: "
                "lower problems_per_step or add problems"
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self.problem_ids) // self.per_step

    def problems(self, step: int) -> list[str]:
        """The problem ids of a step (from 0), in order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[place * self.per_step : (place + 1) * self.per_step]

    def rows(self, steps: int) -> Iterator[tuple[int, str]]:
        """(slot, problem id) for every problem of the first `steps` steps; slot // per_step is the step."""
        for step in range(steps):
            for place, problem_id in enumerate(self.problems(step)):
                yield step * self.per_step + place, problem_id

    def _epoch(self, epoch: int) -> list[str]:
        order = self._epochs.get(epoch)
        if order is None:
            self._epochs.clear()  # steps are walked in order: one epoch is enough to remember
            order = sorted(self.problem_ids, key=lambda problem_id: self._rank(epoch, problem_id))
            self._epochs[epoch] = order
        return order

    def _rank(self, epoch: int, problem_id: str) -> bytes:
        return hashlib.sha256(f"{self.data_seed}\n{epoch}\n{problem_id}".encode()).digest()
