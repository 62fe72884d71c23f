"""`corl run` on real models through real judges and trainers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.launch.folder import RunFolder, State

from corl.weights import checkpoint_digest
from tests.launch.conftest import ROOT, alive, wait_for

EXAMPLE = ROOT / "examples" / "arithmetic"
COHORT = f"""\
name: nano
members:
  llama: {{model: {EXAMPLE}/models/llama, engine: transformers}}
  qwen: {{model: {EXAMPLE}/models/qwen, engine: transformers}}
problems:
  train: {{path: {EXAMPLE}/problems.jsonl}}
  heldout: {{path: {EXAMPLE}/heldout.jsonl}}
rollouts: {{problems_per_step: 4, n: 4, max_tokens: 8}}
vote: {{wait_s: 60}}
training:
  steps: 4
  save_every: 2
  eval_samples: 4
  eval_limit: 8
  learning_rate: 1e-4
  warmup_steps: 0
  device: cpu
  service_deadline_s: 120
"""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Cli:
    """`corl run` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder / "run")
        self.process: subprocess.Popen[str] | None = None
        (folder / "cohort.yaml").write_text(COHORT)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corl", "run", *arguments, "--out", "run"],
            cwd=self.folder,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def state(self) -> State | None:
        return self.run.read() if self.run.state_file.exists() else None

    def pid(self, name: str) -> int | None:
        state = self.state()
        return next((p.pid for p in state.processes if p.name == name), None) if state else None

    def records(self, member: str, kind: str) -> list[dict[str, Any]]:
        try:
            lines = (self.run.member(member) / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := json.loads(line))["kind"] == kind]

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.run.logs.glob("*.log"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    state = cli.state()
    if cli.process is not None and cli.process.poll() is None:
        cli.process.kill()
        cli.process.communicate()
    pids = [process.pid for process in state.processes if process.pid is not None] if state else []
    wait_for(lambda: not any(map(alive, pids)), "every process of the run has ended")


@pytest.mark.timeout(600)
def test_a_cohort_is_trained_though_a_judge_and_a_trainer_are_killed(cli: Cli) -> None:
    process = cli.start("cohort.yaml", "--steps", "8")
    wait_for(lambda: len(cli.records("llama", "step")) >= 3 or process.poll() is not None, "three steps")
    for name in ("judge-qwen", "trainer-llama"):
        pid = cli.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, f"{out}\n{err}\n{cli.logs()}"
    assert "judge-qwen was ended by SIGKILL; it is started again" in out
    assert "trainer-llama was ended by SIGKILL; it is started again" in out
    for name in ("llama", "qwen"):
        assert {record["step"] for record in cli.records(name, "step")} == set(range(1, 9))
        assert (cli.run.member(name) / "final" / "config.json").is_file()
        assert re.search(rf"^{name} +8 +0\.\d+ -> [01]\.\d+ +[01]\.\d+ -> [01]\.\d+ +0$", out, re.MULTILINE)


@pytest.mark.timeout(600)
def test_a_cohort_is_interrupted_and_goes_on(cli: Cli) -> None:
    process = cli.start("cohort.yaml", "--steps", "60")
    wait_for(
        lambda: process.poll() is not None or all(len(cli.records(name, "step")) >= 3 for name in ("llama", "qwen")),
        "three steps of both",
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 3, f"{out}\n{err}\n{cli.logs()}"
    reached = {name: max(record["step"] for record in cli.records(name, "step")) for name in ("llama", "qwen")}
    for name, step in reached.items():
        assert (cli.run.member(name) / "checkpoints" / f"checkpoint-{step}" / "complete.json").is_file()

    last = max(reached.values()) + 2
    process = cli.start("--resume", "--steps", str(last))
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, f"{out}\n{err}\n{cli.logs()}"
    starts = {name: cli.records(name, "start")[-1]["step"] for name in ("llama", "qwen")}
    assert len(set(starts.values())) == 1, "both go on at the same step"
    assert 0 < starts["llama"] <= min(reached.values())
    assert all(cli.records(name, "step")[-1]["step"] == last for name in ("llama", "qwen"))
    again = [record for name in starts for record in cli.records(name, "step")[starts[name] - reached[name] :]]
    assert not any(record["votes/fresh"] for record in again), "they meet again at every step"


def test_a_redis_that_refuses(cli: Cli) -> None:
    (cli.folder / "cohort.yaml").write_text(COHORT + "redis: redis://:hunter2@127.0.0.1:1/0\n")
    process = cli.start("cohort.yaml")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 1, f"{out}\n{err}"
    assert re.search(r"corl run: judge-(llama|qwen) ended with exit code 1", err)
    assert "redis://:***@127.0.0.1:1/0" in err
    assert "hunter2" not in out + err + cli.logs()
    assert "go on with: corl run --resume --out" in out


RING = COHORT.replace(
    "problems:", f"  qwen3: {{model: {EXAMPLE}/models/qwen3, engine: transformers}}\nproblems:", 1
).replace("problems_per_step: 4", "problems_per_step: 2")


def trained_ring(folder: Path, stop: bool) -> dict[str, str]:
    """Digests of the three final models after six steps; with `stop`, of a cohort interrupted after three of them."""
    folder.mkdir()
    cli = Cli(folder)
    (folder / "cohort.yaml").write_text(RING)
    process = cli.start("cohort.yaml", "--steps", "6")
    try:
        if stop:
            wait_for(lambda: len(cli.records("llama", "step")) >= 3 or process.poll() is not None, "three steps")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=280)
            assert process.returncode == 3, f"{out}\n{err}\n{cli.logs()}"
            process = cli.start("--resume")
        out, err = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, f"{out}\n{err}\n{cli.logs()}"
    digests = {}
    for member in ("llama", "qwen", "qwen3"):
        last = {record["step"]: record for record in cli.records(member, "step")}
        assert set(last) == set(range(1, 7))
        assert not any(record["votes/fresh"] for record in last.values()), "all meet at every step"
        digests[member] = checkpoint_digest(cli.run.member(member) / "final")
    return digests


@pytest.mark.timeout(900)
def test_a_ring_of_three_stopped_and_resumed_ends_as_undisturbed(tmp_path: Path) -> None:
    """Three live members; the whole cohort goes on at its smallest common step, with weights equal bit for bit."""
    assert trained_ring(tmp_path / "resumed", stop=True) == trained_ring(tmp_path / "undisturbed", stop=False)
