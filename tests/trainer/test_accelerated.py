"""`python -m corl_trainer.accelerated`: exit codes and signals through `accelerate launch`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from corl_trainer.stops import ExitCode

ROOT = Path(__file__).parents[2]
START = (
    "import sys; from corl_trainer.accelerated import launch; "
    "sys.exit(launch(sys.argv[1:], module='tests.trainer.rank'))"
)
ONE = ["--num_processes", "1"]
Start = Callable[[list[str], list[str]], "subprocess.Popen[bytes]"]


def several() -> list[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", str(port)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def begin(options: list[str], arguments: list[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, "HF_HOME": str(tmp_path / "no-configuration"), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-c", START, *options, "--", *arguments]
        processes.append(subprocess.Popen(argv, cwd=ROOT, env=env, start_new_session=True))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.USAGE, ExitCode.FENCED])
def test_one_trainers_exit_code_is_the_launchers(start: Start, code: ExitCode) -> None:
    assert start(ONE, ["end", str(int(code))]).wait(120) == code


def test_the_exit_code_of_several_ranks_is_the_launchers(start: Start) -> None:
    assert start(several(), ["end", str(int(ExitCode.FENCED))]).wait(120) == ExitCode.FENCED


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_reaches_every_rank_and_is_waited_for(start: Start, tmp_path: Path, ranks: int) -> None:
    process = start(ONE if ranks == 1 else several(), ["wait", str(tmp_path), str(int(ExitCode.REQUESTED))])
    names = [str(rank) for rank in range(ranks)]
    deadline = time.monotonic() + 120
    while not all((tmp_path / name).exists() for name in names):
        assert process.poll() is None, "it ended before it was asked to"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == ExitCode.REQUESTED
    assert all((tmp_path / f"{name}.asked").exists() for name in names)


def test_options_stand_before_the_dashes_and_the_trainers_own_after_them(start: Start, tmp_path: Path) -> None:
    """The real trainer's command line, `--run` included, which torch's parsers would take for one of their own."""
    argv = [sys.executable, "-m", "corl_trainer.accelerated", *ONE, "--", str(tmp_path / "none.yaml")]
    process = subprocess.run([*argv, "--member", "a", "--run", "r"], cwd=ROOT, capture_output=True, timeout=120)
    assert process.returncode == ExitCode.USAGE
    assert b"none.yaml: no such file" in process.stderr
