"""A cohort of fakes, and a `corl run` of it as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from corl_trainer.launch.folder import RunFolder, State

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0
COHORT = """\
name: pair
members:
  a: {model: models/a, engine: transformers}
  b: {model: models/b, engine: transformers}
problems:
  train: {path: train.jsonl}
rollouts: {problems_per_step: 2}
training: {steps: 6}
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


@dataclass
class Launched:
    """A `corl run`, and what it left."""

    process: subprocess.Popen[str]
    folder: RunFolder
    out: str = ""
    err: str = ""

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode

    def state(self) -> State:
        return self.folder.read()

    def running(self) -> bool:
        return self.folder.state_file.exists() and self.state().phase == "running"

    def step(self, member: str) -> int:
        try:
            lines = (self.folder.member(member) / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return max((json.loads(line)["step"] for line in lines if '"step"' in line), default=0)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)


@dataclass
class Bench:
    """A folder with a cohort; `control` says what the fakes do."""

    folder: Path
    control: dict[str, Any] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)

    @property
    def cohort(self) -> Path:
        return self.folder / "cohort.yaml"

    def write(self, text: str = COHORT) -> None:
        self.cohort.write_text(text)
        rows = [{"problem_id": f"p{n}", "problem": f"{n}+1=", "answer": f"{n + 1}-secret"} for n in range(4)]
        (self.folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name in ("a", "b", "c"):
            (self.folder / "models" / name).mkdir(parents=True, exist_ok=True)
            (self.folder / "models" / name / "config.json").write_text("{}")

    def run(self, out: str | None = "run", shell: str = "", output: int | None = None, **asked: Any) -> Launched:
        """`shell` is done before, in the shell that becomes the launcher; `output` is a descriptor for both streams."""
        (self.folder / "control.json").write_text(json.dumps(self.control))
        fields = {"cohort_file": str(self.cohort), "out": str(self.folder / out) if out else None, **asked}
        env = {**os.environ, "FAKE_CONTROL": str(self.folder / "control.json"), "PYTHONPATH": str(ROOT)}
        env.pop("CORL_API_KEY", None)
        process = subprocess.Popen(
            ["sh", "-c", f'{shell}\nexec "$@"', "sh", sys.executable, "-m", "tests.launch.drive", json.dumps(fields)],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE if output is None else output,
            text=True,
        )
        launched = Launched(process, RunFolder(self.folder / (out or "runs/none")))
        self.launched.append(launched)
        return launched

    def started(self, name: str = "") -> list[list[str]]:
        """[process, pid, pid of its child, arguments...] of each start, in order."""
        try:
            lines = (self.folder / "started").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split() for line in lines if line.startswith(name)]

    def pids(self) -> list[int]:
        return [int(pid) for start in self.started() for pid in start[1:3]]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.write()
    yield bench
    for launched in bench.launched:
        if launched.process.poll() is None:
            launched.process.kill()
            launched.process.communicate()
    # Whatever a test was about: nothing that a run has started outlives it.
    wait_for(lambda: not any(map(alive, bench.pids())), "every process of the run has ended")
