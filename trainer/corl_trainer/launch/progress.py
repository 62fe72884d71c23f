"""How far each member is, from the metrics files that the trainers append to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MemberProgress", "line"]


@dataclass
class MemberProgress:
    """What a member's metrics file says so far. `read` may be called at any time; a half-written line waits.

    `begun`: its trainer has its judges and its lease, and trains. `version` names the weights it published last.
    """

    member: str
    file: Path
    step: int = 0
    steps: int = 0
    begun: bool = False
    incarnation: int | None = None
    latest: dict[str, Any] = field(default_factory=dict)
    evals: dict[int, dict[str, Any]] = field(default_factory=dict)
    warning: str | None = None
    _offset: int = 0
    _rest: bytes = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """Records that came since the last call, each noted in the fields."""
        try:
            with self.file.open("rb") as file:
                file.seek(self._offset)
                read = file.read()
        except OSError:
            return
        self._offset += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for raw in lines:
            try:
                record = json.loads(raw)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                self._note(record)
                yield record

    @property
    def version(self) -> str:
        return "" if self.incarnation is None else f"{self.incarnation}:{self.step}"

    def seconds(self, phase: str) -> float | None:
        seconds = self.latest.get("seconds")
        value = seconds.get(phase) if isinstance(seconds, dict) else None
        return float(value) if isinstance(value, int | float) else None

    def number(self, name: str) -> float | None:
        value = self.latest.get(name)
        return float(value) if isinstance(value, int | float) else None

    def _note(self, record: dict[str, Any]) -> None:
        kind, step = record.get("kind"), record["step"]
        if kind == "start":
            # A trainer that resumed does the later steps again.
            self.step = step
            self.evals = {at: found for at, found in self.evals.items() if at <= step}
            self.warning = None
            self.begun = True
            if isinstance(record.get("incarnation"), int):
                self.incarnation = record["incarnation"]
            if isinstance(record.get("steps"), int):
                self.steps = record["steps"]
        elif kind == "step":
            self.step, self.latest = step, record
        elif kind == "eval":
            self.evals[step] = record
        elif kind == "warning":
            self.warning = f"step {step}: {record.get('message', '')}"


def line(progress: MemberProgress, record: dict[str, Any]) -> str | None:
    """One record as a line of text; None for what is not worth one."""
    kind, head = record.get("kind"), f"{progress.member} {record['step']}/{progress.steps or '?'}"
    if kind == "eval":
        found = [
            f"{name.removeprefix('eval/')} {value:.3f}"
            for name, value in record.items()
            if name.startswith(("eval/pass", "eval/maj")) and isinstance(value, int | float)
        ]
        return f"{head}  held-out: {'  '.join(found)}" if found else None
    if kind == "warning":
        return f"{head}  warning: {record.get('message', '')}"
    if kind != "step":
        return None
    parts = [head]
    for name, label, form in (
        ("reward/mean", "reward", ".3f"),
        ("votes/labeled", "labeled", ".0%"),
        ("votes/agreement", "agreement", ".0%"),
        ("accuracy", "accuracy", ".3f"),
    ):
        if isinstance(value := record.get(name), int | float):
            parts.append(f"{label} {value:{form}}")
    seconds = record.get("seconds")
    if isinstance(seconds, dict) and isinstance(seconds.get("step"), int | float):
        split = [f"{name} {value:.1f}" for name, value in seconds.items() if name != "step" and value >= 0.05]
        parts.append(f"{seconds['step']:.1f} s ({', '.join(split)})")
    return "  ".join(parts)
