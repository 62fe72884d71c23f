"""What a run left behind, as one column of the table a member, and what is wrong with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["Measured", "faults", "measure", "table"]

PHASES = ("rollouts", "scores", "waiting", "update", "publish")
LOGP = "sampling/sampling_logp_difference"
AGREES = {"F32": 0.005, "BF16": 0.05}
"""Mean difference, in nats, of a token's log-probability between judge and trainer under the same weights, by what the
judge computes in (float32 may be TF32 on a GPU). A wrong mask, position, temperature or version is far beyond."""


@dataclass(frozen=True)
class Measured:
    """`rows` are step records, `memory` the last values of the judge's memory gauges by (name, kind)."""

    cohort: str
    member: str
    rows: Sequence[Mapping[str, Any]]
    evals: Sequence[Mapping[str, Any]]
    completions: int
    parameters: int
    dtype: str
    passes: str
    memory: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """Over the steps but the first, which also pays for what is compiled and allocated once."""
        return _median(row[name] for row in self.rows[1:] if isinstance(row.get(name), int | float))

    def seconds(self, phase: str) -> float | None:
        return _median(row["seconds"][phase] for row in self.rows[1:])

    def peak(self, name: str) -> float | None:
        return max((row[name] for row in self.rows if name in row), default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a step's rollouts over the seconds in which the trainer waited for them."""
        return _median(
            row["rollouts/tokens"] * self.completions / max(row["seconds"]["rollouts"], 1e-9) for row in self.rows[1:]
        )


def measure(run_dir: Path, memory: Mapping[str, Mapping[tuple[str, str], float]]) -> list[Measured]:
    """The members of a finished run. `memory` is the judges', by member."""
    from corl_trainer.runlog import read_run

    from corl.cohort import load_cohort
    from corl.weights import MANIFEST, Manifest

    cohort = load_cohort(run_dir / "cohort.yaml")
    found = []
    for name, log in read_run(run_dir).items():
        newest = max(run_dir.glob(f"weights/*/{name}/v*/{MANIFEST}"))
        manifest = Manifest.model_validate_json(newest.read_bytes())
        found.append(
            Measured(
                cohort=cohort.name,
                member=name,
                rows=log.steps,
                evals=log.evals,
                completions=cohort.rollouts.problems_per_step * cohort.rollouts.n,
                parameters=sum(math.prod(tensor.shape) for tensor in manifest.tensors),
                dtype=manifest.dtype,
                passes=cohort.training_for(name).dtype,
                memory=memory.get(name, {}),
            )
        )
    return found


def faults(found: Measured, *, steps: int, device: str) -> list[str]:
    """What a working path would not show, each in one line; [] if all is well."""
    return [f"{found.cohort} {found.member}: {text}" for text in _faults(found, steps, device)]


def _faults(found: Measured, steps: int, device: str) -> Iterator[str]:
    if len(found.rows) != steps:
        yield f"{len(found.rows)} of {steps} steps are recorded"
        return
    norms = [row.get("grad_norm") for row in found.rows]
    finite = [norm for norm in norms if isinstance(norm, int | float) and math.isfinite(norm)]
    if len(finite) < steps:
        yield f"{steps - len(finite)} steps have no finite gradient norm"
    if sum(norm > 0 for norm in finite) < steps / 2:
        yield "fewer than half of the steps have a gradient"
    worst = max((row[f"{LOGP}/mean"] for row in found.rows if f"{LOGP}/mean" in row), default=math.inf)
    if worst > AGREES[found.dtype]:
        yield (
            f"judge and trainer differ by {worst:.4f} nats a token in the mean, more than {AGREES[found.dtype]:g}: "
            "they do not compute the same model"
        )
    if not all(row.get("publish/bytes") for row in found.rows):
        yield "a step published no weights"
    if device == "cuda":
        if found.peak("memory/device_peak") is None:
            yield "its trainer used no device memory"
        if ("corl_device_memory_peak_bytes", "reserved") not in found.memory:
            yield "its judge used no device memory"
    accuracy = [row["eval/pass@1"] for row in found.evals]
    if accuracy and accuracy[-1] <= accuracy[0]:
        yield f"held-out pass@1 went from {accuracy[0]:.3f} to {accuracy[-1]:.3f}: it did not learn"


def table(columns: Sequence[Measured]) -> str:
    """Medians over the steps but the first; memory at its peak."""
    lines = [("", [f"{one.cohort} {one.member}" for one in columns])]
    lines += [(label, [cell(one) for one in columns]) for label, cell in CELLS]
    first = max(len(label) for label, _ in lines)
    widths = [max(len(cells[i]) for _, cells in lines) for i in range(len(columns))]
    return "\n".join(
        f"{label:<{first}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for label, cells in lines
    )


def _held_out(one: Measured) -> str:
    values = [row["eval/pass@1"] for row in one.evals]
    return f"{values[0]:.3f} -> {values[-1]:.3f}" if values else "-"


def _phase(one: Measured, phase: str) -> str:
    return _number(one.seconds(phase))


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _number(value: float | None, form: str = ".3f", unit: float = 1.0) -> str:
    return "-" if value is None else format(value / unit, form)


GIB, MB = 2.0**30, 1e6
DEVICE, HOST = "corl_device_memory_peak_bytes", "corl_host_memory_peak_bytes"
CELLS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("parameters, millions", lambda one: _number(one.parameters, ".2f", MB)),
    ("trainer's passes", lambda one: one.passes),
    ("published as", lambda one: one.dtype),
    ("steps", lambda one: str(len(one.rows))),
    ("completions a step", lambda one: str(one.completions)),
    ("tokens a completion", lambda one: _number(one.median("rollouts/tokens"), ".1f")),
    ("labeled problems", lambda one: _number(one.median("votes/labeled"), ".0%")),
    ("held-out pass@1", _held_out),
    ("step, s", lambda one: _number(one.seconds("step"))),
    *((f"  {phase}", partial(_phase, phase=phase)) for phase in PHASES),
    ("published, MB", lambda one: _number(one.median("publish/bytes"), ".1f", MB)),
    ("  write, s", lambda one: _number(one.median("publish/write_seconds"))),
    ("  reload, s", lambda one: _number(one.median("publish/reload_seconds"))),
    ("rollouts, tokens/s", lambda one: _number(one.tokens_per_second, ",.0f")),
    ("log-prob difference, nats", lambda one: _number(one.median(f"{LOGP}/mean"), ".1e")),
    ("trainer: device, GiB", lambda one: _number(one.peak("memory/device_reserved_peak"), ".2f", GIB)),
    ("  of it tensors", lambda one: _number(one.peak("memory/device_peak"), ".2f", GIB)),
    ("  host, GiB", lambda one: _number(one.peak("memory/host_peak"), ".2f", GIB)),
    ("judge: device, GiB", lambda one: _number(one.memory.get((DEVICE, "reserved")), ".2f", GIB)),
    ("  of it tensors", lambda one: _number(one.memory.get((DEVICE, "allocated")), ".2f", GIB)),
    ("  host, GiB", lambda one: _number(one.memory.get((HOST, "")), ".2f", GIB)),
)
