"""What reports show: one member of one experiment, over one run or over several that differ in their seeds alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from corl_trainer.runlog import MemberLog, read_run

__all__ = ["Line", "NoMetrics", "Series", "Spread", "compared", "of_run"]


class NoMetrics(Exception):
    """No member of a run has written anything; the message names the folder."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation over runs; the deviation is None of a single one."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.deviation is None else f"{self.mean:.3f} ± {self.deviation:.3f}"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric over steps: mean, least and greatest over the runs that have the step."""

    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True)
class Line:
    title: str
    logs: Sequence[MemberLog]

    def series(self, metric: str) -> Series:
        found: dict[int, list[float]] = {}
        for log in self.logs:
            for step, value in zip(*log.series(metric), strict=True):
                found.setdefault(step, []).append(value)
        rows = sorted(found.items())
        return Series(
            [step for step, _ in rows],
            [fmean(values) for _, values in rows],
            [min(values) for _, values in rows],
            [max(values) for _, values in rows],
        )

    def ends(self, metric: str) -> tuple[Spread, Spread] | None:
        """(first, last) value over the runs that have any."""
        both = [(values[0], values[-1]) for log in self.logs if (values := log.series(metric)[1])]
        return (Spread.of([a for a, _ in both]), Spread.of([b for _, b in both])) if both else None

    def seconds(self, phase: str) -> float:
        """Mean over all steps of all runs; 0 where there was none."""
        taken = [row.get("seconds", {}).get(phase, 0.0) for log in self.logs for row in log.steps]
        return fmean(taken) if taken else 0.0

    @property
    def evaluations(self) -> list[str]:
        """Names of the held-out measures, in the order in which they were written."""
        rows = (row for log in self.logs for row in log.evals)
        return list(dict.fromkeys(name for row in rows for name in row if name.startswith(("eval/pass@", "eval/maj@"))))

    @property
    def steps(self) -> int:
        """Steps that every run has done."""
        return min((log.steps[-1]["step"] if log.steps else 0) for log in self.logs)

    @property
    def labels(self) -> int | None:
        """Answers of training problems that the trainers loaded, as they say themselves."""
        counts = [start["labels"] for log in self.logs for start in log.starts if isinstance(start.get("labels"), int)]
        return max(counts) if counts else None


def of_run(folder: Path) -> list[Line]:
    """Every member of one run. Raises NoMetrics."""
    return [Line(name, [log]) for name, log in _read(folder).items()]


def compared(folders: Sequence[Path]) -> list[Line]:
    """Every member of every experiment. Runs whose cohort files differ in nothing but seeds are one experiment.

    An experiment of a single run has the folder's name; one of several has the cohort's and the reward's. A folder
    that holds no cohort file, as `corl train` leaves it, is an experiment of its own. Raises NoMetrics.
    """
    groups: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(path.resolve() for path in folders):
        groups.setdefault(_identity(folder), []).append(folder)
    lines: list[Line] = []
    for runs in groups.values():
        found = [_read(folder) for folder in runs]
        title = runs[0].name if len(runs) == 1 else _title(runs)
        members = dict.fromkeys(name for run in found for name in run)
        lines += [Line(f"{title}/{name}", [run[name] for run in found if name in run]) for name in members]
    return lines


def _read(folder: Path) -> dict[str, MemberLog]:
    logs = read_run(folder)
    if not logs:
        raise NoMetrics(f"no member has written {folder}/<member>/metrics.jsonl yet")
    return logs


def _identity(folder: Path) -> str:
    cohort = _cohort(folder)
    if cohort is None:
        return str(folder)
    for name in ("seed", "redis", "weights"):
        cohort.pop(name, None)
    for settings in [cohort, *cohort["members"].values()]:
        training = {k: v for k, v in (settings.pop("training", None) or {}).items() if k not in ("seed", "data_seed")}
        if training:
            settings["training"] = training
    problems = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("problems/*"))]
    return json.dumps([cohort, problems], sort_keys=True, default=str)


def _title(runs: Sequence[Path]) -> str:
    cohort = _cohort(runs[0])
    assert cohort is not None, "only cohort files make runs one experiment"
    return f"{cohort.get('name', 'cohort')} {cohort.get('reward', 'peer')}, {len(runs)} runs"


def _cohort(folder: Path) -> dict[str, Any] | None:
    try:
        content = yaml.safe_load((folder / "cohort.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("members"), dict) else None
