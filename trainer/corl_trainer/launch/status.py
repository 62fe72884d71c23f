"""`corl status`: a run from its folder, and from its judges while they answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from corl.client import JudgeClient
from corl.errors import CorlError
from corl.wire import Replica
from corl_trainer.launch.folder import ProcessState, RunFolder, State
from corl_trainer.launch.progress import MemberProgress
from corl_trainer.launch.view import members_table

__all__ = ["print_status"]

PATIENCE_S = 3.0


def print_status(folder: RunFolder) -> None:
    """Raises RunFolderError if there is no run in the folder."""
    state = folder.read()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    members = [MemberProgress(name, folder.member(name) / "metrics.jsonl") for name in state.members]
    for progress in members:
        list(progress.read())
    trained = {process.member for process in state.processes if process.kind == "trainer"}
    console.print(members_table(state, [progress for progress in members if progress.member in trained]))
    console.print(_processes(state))
    for line in _replicas(folder, state):
        console.print(line, markup=False, soft_wrap=True)
    for line in _facts(folder, state):
        console.print(line, markup=False, soft_wrap=True)


def _processes(state: State) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("process", "state", "pid", "restarts", "address", "log"):
        table.add_column(name)
    for process in state.processes:
        exit_code = "" if process.exit_code is None else f" ({process.exit_code})"
        pid = "" if process.pid is None else str(process.pid)
        table.add_row(
            process.name,
            f"{process.state}{exit_code}",
            pid,
            str(process.restarts),
            process.url or "",
            process.log or "",
        )
    return table


def _replicas(folder: RunFolder, state: State) -> Iterator[str]:
    """What the judges say of themselves; nothing of those that do not answer."""
    key = _key(folder)
    if key is None:
        return
    asked: set[str | None] = set()
    for process in state.processes:
        if process.kind != "judge" or process.member in asked or process.state not in ("ready", "external"):
            continue
        asked.add(process.member)
        for replica in _ask(process, key):
            tag = replica.loaded
            loaded = f"{tag.incarnation}:{tag.version}:{tag.digest[:12]}" if tag is not None else "none"
            words = [replica.state, f"weights {loaded}", f"{replica.in_flight} in flight"]
            if replica.reload_error:
                words.append(f"last reload failed: {replica.reload_error}")
            yield f"{replica.member} replica {replica.id}: {', '.join(words)}"


def _ask(process: ProcessState, key: str) -> list[Replica]:
    if process.url is None:
        return []
    try:
        with JudgeClient(process.url, api_key=key) as client:
            return client.weights(deadline_s=PATIENCE_S).replicas
    except CorlError:
        return []


def _key(folder: RunFolder) -> str | None:
    try:
        return (folder.path / "api-key").read_text()
    except OSError:
        return None


def _facts(folder: RunFolder, state: State) -> Iterator[str]:
    until = state.ended if state.ended is not None else time.time()
    if state.phase in ("starting", "running", "stopping"):
        since = f"{state.phase} for {until - state.started:.0f} s"
        yield f"{since}, launched by process {state.pid}, attempt {state.attempt}"
    elif state.ended is not None:
        yield f"{state.phase} after {until - state.started:.0f} s, attempt {state.attempt}"
    if state.error:
        yield f"error: {state.error}"
    if state.phase in ("stopped", "failed"):
        yield f"go on with: corl run --resume --out {Path(folder.path)}"
