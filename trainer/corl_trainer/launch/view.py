"""What `corl run` shows: a table that is drawn anew in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from corl_trainer.launch.folder import ProcessState, State
from corl_trainer.launch.progress import MemberProgress

__all__ = ["PlainView", "TableView", "View", "make_view", "members_table"]


Justify = Literal["left", "right"]
COLUMNS: dict[str, Justify] = {
    "member": "left",
    "judge": "left",
    "trainer": "left",
    "ver": "right",  # of its weights
    "step": "right",
    "reward": "right",
    "labeled": "right",
    "agree": "right",
    "held-out": "right",
    "s/step": "right",
}


class View(Protocol):
    """`say` is for what happened; `update` for how things are now."""

    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...
    def update(self, state: State, members: Sequence[MemberProgress]) -> None: ...


class PlainView:
    """Lines on standard output, each with the time."""

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        for part in text.splitlines():
            print(f"{time.strftime('%H:%M:%S')} {part}", flush=True)

    def progress(self, text: str) -> None:
        self.say(text)

    def update(self, state: State, members: Sequence[MemberProgress]) -> None:
        pass


class TableView:
    """One row a member, drawn anew; what happened scrolls above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> TableView:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def progress(self, text: str) -> None:
        pass  # the table shows it

    def update(self, state: State, members: Sequence[MemberProgress]) -> None:
        self._live.update(members_table(state, members))


def make_view() -> View:
    """A table where the output is a terminal, else lines."""
    console = Console()
    return (
        TableView(console)
        if console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty()
        else PlainView()
    )


def members_table(state: State, members: Sequence[MemberProgress]) -> Group:
    """One row a member: where its trainer and judge are, and its last step; below, the last warning of each."""
    title = f"{state.run}: {state.phase}, reward {state.reward}"
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for name, justify in COLUMNS.items():
        table.add_column(name, justify=justify, no_wrap=True)
    known = {progress.member: progress for progress in members}
    for name in state.members:
        progress = known.get(name)
        judges = [process for process in state.processes if process.kind == "judge" and process.member == name]
        trainer = next((p for p in state.processes if p.kind == "trainer" and p.member == name), None)
        ready = sum(process.state in ("ready", "external") for process in judges)
        shown = judges[0].state if len(judges) == 1 else f"{ready}/{len(judges)} ready"
        if progress is None:
            table.add_row(name, shown, "frozen")
            continue
        table.add_row(
            name,
            shown,
            _phase(trainer, progress),
            progress.version,
            f"{progress.step}/{progress.steps or state.steps}",
            _number(progress.number("reward/mean"), ".3f"),
            _number(progress.number("votes/labeled"), ".0%"),
            _number(progress.number("votes/agreement"), ".0%"),
            _held_out(progress),
            _number(progress.seconds("step"), ".1f"),
        )
    # A sentence in a column of its own would leave the numbers no room on a terminal of 80 columns.
    warnings = [Text(f"{progress.member}: {progress.warning}") for progress in members if progress.warning]
    return Group(table, *warnings)


def _phase(trainer: ProcessState | None, progress: MemberProgress) -> str:
    if trainer is None or trainer.state != "running":
        return "" if trainer is None else trainer.state
    return "training" if progress.begun else "loading"


def _held_out(progress: MemberProgress) -> str:
    if not progress.evals:
        return ""
    first, last = min(progress.evals), max(progress.evals)
    values = [_number(progress.evals[step].get("eval/pass@1"), ".3f") for step in dict.fromkeys((first, last))]
    return " -> ".join(values)


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else ""
