"""`corl status` and `corl stop`, from another process than the run's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.launch.conftest import ROOT, Bench, Launched, wait_for


def corl(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "corl", *arguments],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def running(bench: Bench) -> Launched:
    bench.control = {f"trainer-{name}": {"step_s": 0.3} for name in "ab"}
    run = bench.run("runs/here", steps=1000)
    wait_for(lambda: run.running() and run.step("a") >= 1 and run.step("b") >= 1, "it runs")
    return run


def test_status_of_a_running_cohort(bench: Bench, running: Launched) -> None:
    done = corl(bench, "status")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["a"][1:3] == ["ready", "training"]
    assert rows["a"][4].endswith("/1000")
    state = running.state()
    for process in state.processes:
        assert rows[process.name][2] == str(process.pid)
    assert f"launched by process {running.process.pid}, attempt 1" in done.stdout
    shown = json.loads(corl(bench, "status", "--json").stdout)
    assert (shown["phase"], shown["run"]) == ("running", state.run)


def test_stop_ends_it_and_waits(bench: Bench, running: Launched) -> None:
    done = corl(bench, "stop")
    assert done.stdout.splitlines()[-1] == f"{running.folder.path}: stopped"
    assert running.wait() == 3
    again = corl(bench, "stop", "runs/here")
    assert (again.returncode, again.stdout) == (0, f"{running.folder.path} is not running\n")
    status = corl(bench, "status").stdout
    assert f"go on with: corl run --resume --out {running.folder.path}" in status


def test_stop_now(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 600} for name in "ab"}
    run = bench.run("runs/here")
    wait_for(lambda: len(bench.started("trainer-")) == 2, "both trainers have started")
    wait_for(run.running, "it runs")
    assert corl(bench, "stop", "--now").stdout.splitlines()[-1] == f"{run.folder.path}: stopped"
    assert run.wait() == 130


def test_status_after_the_end_and_of_a_failure(bench: Bench) -> None:
    bench.control = {"trainer-b": {"exit_at_start": True, "code": 2}}
    run = bench.run("runs/here")
    assert run.wait() == 1
    done = corl(bench, "status", "runs/here")
    assert "error: trainer-b ended with exit code 2" in done.stdout
    assert "failed (2)" in done.stdout


@pytest.mark.parametrize("command", ["status", "stop"])
def test_no_run_there(bench: Bench, command: str) -> None:
    done = corl(bench, command)
    assert (done.returncode, done.stderr) == (2, f"corl: no run under {bench.folder}/runs: name its folder\n")
    done = corl(bench, command, "models")
    assert (done.returncode, done.stderr) == (2, f"corl: {bench.folder}/models: no run here (no run.json)\n")


def test_help_has_examples() -> None:
    for command in ("run", "status", "stop"):
        done = subprocess.run([sys.executable, "-m", "corl", command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "Examples:" in done.stdout
        assert f"corl {command}" in done.stdout
