"""One run from its cohort file to its last step, or to the reason why it ended earlier."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from corl.cohort import Cohort, CohortError, load_cohort, load_problems
from corl.guard import Guard
from corl.localredis import LocalRedis
from corl_trainer.launch.folder import RunFolder, RunFolderError, State, new_name, newest_run
from corl_trainer.launch.materialize import materialize
from corl_trainer.launch.plan import Programs, make_plan
from corl_trainer.launch.ports import Ports
from corl_trainer.launch.preflight import check_training
from corl_trainer.launch.progress import MemberProgress
from corl_trainer.launch.resume import resume_steps
from corl_trainer.launch.supervisor import GaveUp, Limits, Stopped, Supervisor
from corl_trainer.launch.tolerant import tolerant_output
from corl_trainer.launch.view import View, make_view

__all__ = ["Asked", "RunExit", "launch"]

REPORT_S = 300.0


class RunExit(IntEnum):
    """Exit codes of `corl run`; 2 is wrong input."""

    DONE = 0
    FAILED = 1
    STOPPED = 3
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of `corl run`."""

    cohort_file: Path | None = None
    out: Path | None = None
    reward: str | None = None
    steps: int | None = None
    resume: bool = False
    seed: int | None = None

    def overrides(self) -> dict[str, Any]:
        given = {
            "reward": self.reward,
            "training.steps": self.steps,
            "seed": self.seed,
            "training.seed": self.seed,
            "training.data_seed": self.seed,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's folder, filled; `steps` is where members go on, None in a first attempt."""

    folder: RunFolder
    cohort: Cohort
    state: State
    steps: dict[str, int] | None
    note: str


def launch(
    asked: Asked,
    *,
    root: Path = Path("runs"),
    programs: Programs | None = None,
    limits: Limits | None = None,
    view: View | None = None,
) -> RunExit:
    """Run a cohort to its end. Raises CorlError, with nothing running, for input that is wrong."""
    folder = _resumed_folder(asked, root) if asked.resume else _new_folder(asked, root)
    with folder.held():
        prepared = _resumed(asked, folder) if asked.resume else _new(asked, folder)
        with tolerant_output():
            return _run(prepared, programs, limits or Limits(), view or make_view())


# Preparing -----------------------------------------------------------------------------------------------------------


def _new_folder(asked: Asked, root: Path) -> RunFolder:
    if asked.cohort_file is None:
        raise RunFolderError("which cohort? give its file: corl run cohort.yaml")
    cohort = _loaded(asked.cohort_file, asked)
    folder = RunFolder(asked.out if asked.out is not None else new_name(root, f"{cohort.name}-{cohort.reward}"))
    folder.create()
    return folder


def _resumed_folder(asked: Asked, root: Path) -> RunFolder:
    folder = RunFolder(asked.out) if asked.out is not None else newest_run(root, asked.cohort_file)
    folder.read()
    return folder


def _loaded(file: Path, asked: Asked) -> Cohort:
    """The cohort with all that it names found to be there. Raises CohortError."""
    cohort = load_cohort(file, overrides=asked.overrides())
    if not cohort.trained():
        raise CohortError(f"{file}: every member is frozen: there is nothing to train; `corl judge` serves one alone")
    for name in cohort.members:
        cohort.model_path(name)
    check_training(cohort)
    return cohort


def _new(asked: Asked, folder: RunFolder) -> Prepared:
    assert asked.cohort_file is not None
    cohort = _loaded(asked.cohort_file, asked)
    with _writing(folder):
        materialize(cohort, folder.path)
    state = _state(cohort, folder, asked.cohort_file.absolute(), attempt=1)
    return Prepared(folder, load_cohort(folder.cohort_file), state, None, f"run {folder.path}")


def _resumed(asked: Asked, folder: RunFolder) -> Prepared:
    before = folder.read()
    copy = load_cohort(folder.cohort_file)
    cohort = _loaded(asked.cohort_file or folder.cohort_file, asked)
    _check_same(copy, cohort, folder)
    if before.phase == "done" and cohort.training.steps <= before.steps:
        raise RunFolderError(f"{folder.path}: all {before.steps} steps are done; to go further, give more by --steps")
    with _writing(folder):
        materialize(cohort, folder.path)
        # Nothing of an earlier attempt is needed but its checkpoints: votes and results of steps that will be done
        # again must not be found, so the attempt has a name and a Redis of its own.
        shutil.rmtree(folder.path / "redis", ignore_errors=True)
        weights = cohort.resolve(cohort.weights) if cohort.weights is not None else folder.weights
        shutil.rmtree(weights / before.run, ignore_errors=True)
    cohort = load_cohort(folder.cohort_file)
    steps, where = resume_steps(cohort, folder)
    state = _state(cohort, folder, Path(before.cohort_file), attempt=before.attempt + 1)
    return Prepared(folder, cohort, state, steps, f"run {folder.path}, resumed: {where}")


def _check_same(before: Cohort, now: Cohort, folder: RunFolder) -> None:
    """A run that goes on may change settings, not what its past steps were about."""
    checks: list[tuple[str, Any, Any]] = [
        ("reward", before.reward, now.reward),
        ("members", list(before.members), list(now.members)),
        ("training.data_seed", before.training.data_seed, now.training.data_seed),
        ("rollouts.problems_per_step", before.rollouts.problems_per_step, now.rollouts.problems_per_step),
        ("the ids of problems.train", load_problems(before).ids, load_problems(now).ids),
    ]
    for name, old, new in checks:
        if old != new:
            shown = "" if name.startswith("the ids") else f" ({old} before, {new} now)"
            raise CohortError(f"{folder.path}: {name} is not what this run was started with{shown}: start a new run")


def _state(cohort: Cohort, folder: RunFolder, file: Path, attempt: int) -> State:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.path.name).strip("-._") or cohort.name
    return State(
        run=f"{stem[:80]}-{secrets.token_hex(3)}",
        cohort_file=str(file),
        reward=cohort.reward,
        members=list(cohort.members),
        steps=cohort.training.steps,
        pid=os.getpid(),
        started=time.time(),
        attempt=attempt,
    )


@contextlib.contextmanager
def _writing(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be written: {error}") from error


# Running -------------------------------------------------------------------------------------------------------------


def _run(prepared: Prepared, programs: Programs | None, limits: Limits, view: View) -> RunExit:
    folder, state, cohort = prepared.folder, prepared.state, prepared.cohort
    save = _Saving(folder)
    members = [MemberProgress(name, folder.member(name) / "metrics.jsonl") for name in cohort.trained()]
    key = os.environ.get("CORL_API_KEY") or secrets.token_urlsafe(32)
    try:
        with contextlib.ExitStack() as stack:
            with _writing(folder):
                folder.write(state)
                stack.enter_context(folder.key_shown(key))
            stack.enter_context(view)
            view.say(prepared.note)
            guard = Guard(limits.guard_s)
            stack.callback(guard.close)
            ports = Ports()
            stack.callback(ports.close)
            url, redis = os.environ.get("CORL_REDIS") or cohort.redis, None
            if url is None:
                redis = LocalRedis(folder.path / "redis", append_only=True, log=folder.logs / "redis.log")
                url = stack.enter_context(redis).url
            plan = make_plan(
                cohort, folder, ports, run=state.run, redis=url, key=key, resume=prepared.steps, programs=programs
            )
            Supervisor(plan, state, members, view, guard, save, redis, limits).run()
    except Stopped as stopped:
        return _ended(state, save, "stopped", RunExit.INTERRUPTED if stopped.now else RunExit.STOPPED, folder)
    except GaveUp as failure:
        state.error = str(failure)
        _say_failure(failure)
        return _ended(state, save, "failed", RunExit.FAILED, folder)
    except BaseException as error:
        state.error = str(error) or type(error).__name__
        state.phase, state.ended = "failed", time.time()
        save(state)
        raise
    state.phase, state.ended = "done", time.time()
    save(state)
    _report(folder)
    return RunExit.DONE


def _ended(state: State, save: _Saving, phase: str, code: RunExit, folder: RunFolder) -> RunExit:
    state.phase, state.ended = ("stopped" if phase == "stopped" else "failed"), time.time()
    save(state)
    print(f"go on with: corl run --resume --out {shlex.quote(str(folder.path))}", flush=True)
    return code


def _say_failure(failure: GaveUp) -> None:
    lines = [f"corl run: {failure}"]
    if failure.log_lines:
        lines += [f"the last lines of {failure.log}:", *(f"    {line}" for line in failure.log_lines)]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _report(folder: RunFolder) -> None:
    """The table and the picture, in a process of its own: a run is no less done without them."""
    print(f"models: {folder.path}/MEMBER/final   metrics: {folder.path}/MEMBER/metrics.jsonl", flush=True)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-m", "corl", "report", str(folder.path)], timeout=REPORT_S, check=False)


@dataclass
class _Saving:
    """Writes the state; a disk that is full must not end a run that still trains."""

    folder: RunFolder
    warned: bool = False

    def __call__(self, state: State) -> None:
        try:
            self.folder.write(state)
        except OSError as error:
            if not self.warned:
                print(f"corl run: {self.folder.state_file}: {error}; the run goes on", file=sys.stderr, flush=True)
            self.warned = True
