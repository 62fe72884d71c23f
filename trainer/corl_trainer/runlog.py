"""`metrics.jsonl` of a member: what its trainer appends, and what the report reads back.

One JSON object a line with a `kind`: `start` (a trainer began or resumed), `step` (one update), `eval`, `warning`,
`end`. A resumed trainer writes the steps after its checkpoint again: a reader drops what a later `start` undoes.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MemberLog", "RunLog", "read_member", "read_run"]

logger = logging.getLogger(__name__)
NAME = "metrics.jsonl"


class RunLog:
    """Appends records; a full disk must not stop training, so a record that cannot be written is warned of once."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self._warned = False
        _end_torn_line(self.path)

    def write(self, kind: str, step: int, **fields: Any) -> None:
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **_finite(fields)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            if not self._warned:
                logger.warning("%s: %s; training goes on without this record", self.path, error)
            self._warned = True


@dataclass
class MemberLog:
    """What is known of a member's run, in order, without what a resume has undone."""

    member: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """(steps, values) of a metric, where it has one."""
        rows = self.evals if name.startswith("eval/") else self.steps
        found = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        return [step for step, _ in found], [float(value) for _, value in found]


def read_member(folder: Path) -> MemberLog:
    """Reads `<folder>/metrics.jsonl`; a torn last line, of a process that was killed while writing, is left out."""
    log = MemberLog(folder.name)
    for raw in (folder / NAME).read_text(encoding="utf-8").split("\n"):
        try:
            record = json.loads(raw)
            kind, step = record["kind"], int(record["step"])
        except (ValueError, KeyError, TypeError):
            continue
        if kind == "start":
            log.steps = [row for row in log.steps if row["step"] <= step]
            log.evals = [row for row in log.evals if row["step"] <= step]
            log.warnings = [row for row in log.warnings if row["step"] <= step]
            log.starts.append(record)
            log.end = None
        elif kind == "step":
            log.steps.append(record)
        elif kind == "eval":
            log.evals = [row for row in log.evals if row["step"] != step]
            log.evals.append(record)
        elif kind == "warning":
            log.warnings.append(record)
        elif kind == "end":
            log.end = record
    return log


def read_run(run_dir: Path) -> dict[str, MemberLog]:
    """Every member of a run that has written anything, by name."""
    folders = sorted(path.parent for path in run_dir.glob(f"*/{NAME}"))
    return {folder.name: read_member(folder) for folder in folders}


def _finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _end_torn_line(path: Path) -> None:
    """A killed process may have left half a line: the next record must not be glued to it."""
    try:
        with path.open("rb+") as file:
            file.seek(0, 2)
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
    except FileNotFoundError:
        pass
