"""What trainer tests start: real judges in a thread of this process, and trainers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from corl_judge.app import create_app
from corl_judge.engines.base import Engine
from corl_judge.settings import Settings
from corl_trainer.settings import TrainerSettings

from corl.client import JudgeClient
from corl.cohort import Cohort, load_cohort

__all__ = [
    "EXAMPLE",
    "MODELS",
    "cohort",
    "ended",
    "free_port",
    "judge_process",
    "serving",
    "settings",
    "trainer_process",
    "wait_for",
    "write_cohort",
]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "arithmetic" / "cohort.yaml"
MODELS = ROOT / "examples" / "arithmetic" / "models"
SMALL = {
    "training.steps": 4,
    "training.save_every": 2,
    "training.eval_limit": 8,
    "training.eval_samples": 2,
    "training.service_deadline_s": 60,
    "rollouts.problems_per_step": 4,
    "rollouts.n": 4,
    "vote.wait_s": 30,
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def cohort(path: Path = EXAMPLE, **overrides: Any) -> Cohort:
    """The example cohort made small; `training__steps=2` overrides training.steps."""
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    reward = named.pop("reward", None)
    return load_cohort(path, reward=reward, overrides=SMALL | named)


def settings(
    of: Cohort, member: str, run_dir: Path, judges: Mapping[str, str], run: str = "run", **more: Any
) -> TrainerSettings:
    return TrainerSettings.build(of, member, run=run, run_dir=run_dir, judges=judges, **more)


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(judge: Settings, engine: Engine) -> Iterator[str]:
    """A real judge in a thread; its address once it is ready."""
    config = uvicorn.Config(create_app(judge, engine), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, "the judge to listen")
    (port,) = {s.getsockname()[1] for listening in server.servers for s in listening.sockets}
    url = f"http://127.0.0.1:{port}"
    try:
        with JudgeClient(url) as client:
            client.wait_ready(deadline_s=60)
        yield url
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def trainer_process(arguments: Sequence[str | Path], log: Path, ranks: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m corl_trainer ARGUMENTS`, under torchrun if there are several ranks; killed at the end."""
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port()), "-m"]
    command += ["corl_trainer", "--", *map(str, arguments)]
    with running(command, log) as process:
        yield process


@contextmanager
def judge_process(arguments: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`corl judge ARGUMENTS`; killed at the end if still alive."""
    with running([sys.executable, "-m", "corl", "judge", *map(str, arguments)], log) as process:
        yield process


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def ended(process: subprocess.Popen[bytes], log: Path, seconds: float = 150.0) -> int:
    """Its exit code; with the end of its log if it does not end."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running after {seconds} s:\n{log.read_text()[-3000:]}") from None


def write_cohort(path: Path, **overrides: Any) -> Path:
    """The example cohort made small, as a file of its own for processes."""
    content = yaml.safe_load(EXAMPLE.read_text())
    content["problems"].pop("views", None)
    for part in ("train", "heldout"):
        content["problems"][part]["path"] = str(EXAMPLE.parent / content["problems"][part]["path"])
    for name, member in content["members"].items():
        member["model"] = str(MODELS / name)
    for name, value in (SMALL | {name.replace("__", "."): value for name, value in overrides.items()}).items():
        *parents, last = name.split(".")
        target = content
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


def wait_for(condition: Any, what: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)
