"""A run's folder: made once, held by one launcher at a time, with its state for others to read.

RUN_DIR/run.json      what runs, as `State`; written anew at every change
        lock          held while a launcher lives, with its process id
        api-key       the judges' key, readable by the owner alone, while a launcher lives
        cohort.yaml   the cohort as it runs, with absolute paths
        problems/     the problems that it names
        logs/         one file a process
        MEMBER/       metrics.jsonl, checkpoints, the final model
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from corl.errors import CorlError

__all__ = ["Phase", "ProcessState", "RunFolder", "RunFolderError", "State", "new_name", "newest_run"]

Phase = Literal["starting", "running", "stopping", "done", "stopped", "failed"]


class RunFolderError(CorlError):
    """A run's folder cannot be made, is in use, or is not one."""


class ProcessState(BaseModel):
    """One process of a run. `url` is a judge's address; `restarts` counts how often it was started again."""

    model_config = ConfigDict(extra="ignore")
    name: str
    kind: Literal["redis", "judge", "trainer"]
    member: str | None = None
    state: Literal["waiting", "starting", "ready", "running", "restarting", "ended", "failed", "external"] = "waiting"
    pid: int | None = None
    url: str | None = None
    log: str | None = None
    restarts: int = 0
    exit_code: int | None = None


class State(BaseModel):
    """`run.json`. Times are in seconds since the epoch."""

    model_config = ConfigDict(extra="ignore")
    format: Literal[1] = 1
    run: str
    cohort_file: str
    reward: str
    members: list[str]
    steps: int
    phase: Phase = "starting"
    pid: int
    started: float
    ended: float | None = None
    error: str | None = None
    attempt: int = 1
    processes: list[ProcessState] = []


class RunFolder:
    """`path` is absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def state_file(self) -> Path:
        return self.path / "run.json"

    @property
    def cohort_file(self) -> Path:
        return self.path / "cohort.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    def member(self, name: str) -> Path:
        return self.path / name

    def create(self) -> None:
        """Make the folder. Raises RunFolderError if there is anything in it."""
        if self.state_file.exists():
            raise RunFolderError(
                f"{self.path} holds a run already: go on with `corl run --resume --out {self.path}`, "
                "or take another --out"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            there = sorted(entry.name for entry in self.path.iterdir() if entry.name not in ("logs", "lock"))
            if there:
                raise RunFolderError(f"--out {self.path} is not empty (it holds {there[0]!r}): take another folder")
            self.logs.mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"--out {self.path}: cannot be made: {error.strerror}") from error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one launcher of this run. Raises RunFolderError if another is."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            raise RunFolderError(f"--out {self.path}: cannot be written: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunFolderError(
                    f"{self.path} is being run by process {self.holder() or '?'}: "
                    f"see `corl status {self.path}`, or end it with `corl stop {self.path}`"
                ) from error
            os.ftruncate(lock.fileno(), 0)
            try:
                os.write(lock.fileno(), str(os.getpid()).encode())
            except OSError as error:
                raise RunFolderError(f"{self.path} cannot be written: {error}") from error
            yield

    def holder(self) -> int | None:
        """The process id of the launcher that runs it now; None if none does."""
        try:
            with (self.path / "lock").open("r") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    text = lock.read().strip()
                    return int(text) if text.isdecimal() else None
        except OSError:
            pass
        return None

    def read(self) -> State:
        """Raises RunFolderError if there is no run here, or one of another version."""
        try:
            state = State.model_validate_json(self.state_file.read_bytes())
        except OSError as error:
            raise RunFolderError(f"{self.path}: no run here (no run.json)") from error
        except ValidationError as error:
            raise RunFolderError(f"{self.state_file}: not readable: {error.errors()[0]['msg']}") from error
        if state.phase in ("starting", "running", "stopping") and self.holder() is None:
            # Its launcher was killed: what it started has ended with it.
            state.phase, state.error = "failed", state.error or "its launcher was killed"
        return state

    def write(self, state: State) -> None:
        """Atomically. Raises OSError."""
        partial = self.state_file.with_name(".run.json.partial")
        partial.write_text(state.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.state_file)

    @contextlib.contextmanager
    def key_shown(self, key: str) -> Iterator[None]:
        """Keep the judges' key where its owner can read it, for as long as the judges run."""
        path = self.path / "api-key"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def newest_run(root: Path, cohort_file: Path | None = None) -> RunFolder:
    """The run under `root` that was started last, of that cohort file if one is given. Raises RunFolderError."""
    found: list[tuple[float, RunFolder]] = []
    for path in root.glob("*/run.json"):
        folder = RunFolder(path.parent)
        try:
            state = folder.read()
        except RunFolderError:
            continue
        if cohort_file is None or Path(state.cohort_file) == cohort_file.absolute():
            found.append((state.started, folder))
    if not found:
        of = f" of {cohort_file}" if cohort_file is not None else ""
        raise RunFolderError(f"no run{of} under {root.absolute()}: name its folder")
    return max(found, key=lambda entry: entry[0])[1]


def new_name(root: Path, stem: str) -> Path:
    """A folder under `root` that is not there: the stem and the time."""
    base = root / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path
