"""Where a step's seconds go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

__all__ = ["Phase", "Phases"]

Phase = Literal["rollouts", "scores", "waiting", "publish", "evaluate", "update"]


class Phases:
    """Seconds by phase of the step under way.

    `rollouts`, `scores`, `publish` and `evaluate` are the seconds for which this process stood still for them, so what
    overlaps with the update is not counted twice; `waiting` is the part of `scores` for which a teacher's judge waited
    for its own trainer's rollouts; `update` is the rest of the step.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    def begin(self) -> None:
        self._seconds.clear()
        self._begun = time.perf_counter()

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begun)

    def add(self, phase: Phase, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def end(self) -> dict[str, float]:
        """Seconds by phase, and `step` for all of it."""
        whole = time.perf_counter() - self._begun
        waiting = min(self._seconds.get("waiting", 0.0), self._seconds.get("scores", 0.0))
        parts = {name: self._seconds.get(name, 0.0) for name in ("rollouts", "scores", "publish", "evaluate")}
        parts["update"] = max(0.0, whole - sum(parts.values()))
        parts["scores"] -= waiting
        return {**parts, "waiting": waiting, "step": whole}
