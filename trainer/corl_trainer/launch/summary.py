"""What a run came to, in one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from corl_trainer.launch.folder import State
from corl_trainer.launch.progress import MemberProgress

__all__ = ["print_summary"]


def print_summary(console: Console, state: State, members: Sequence[MemberProgress], labels: int, folder: Path) -> None:
    """Held-out accuracy of each member at its first and its last evaluation, and how many labels training read."""
    names = list(dict.fromkeys(name for progress in members for name in _measures(progress)))
    table = Table(
        box=None, pad_edge=False, header_style="bold", title=f"{state.run}: held-out problems, before and after"
    )
    table.title_justify = "left"
    table.add_column("member")
    table.add_column("steps", justify="right")
    for name in names:
        table.add_column(name.removeprefix("eval/"), justify="right")
    table.add_column("labels used", justify="right")
    for progress in members:
        cells = [_before_after(progress, name) for name in names]
        table.add_row(progress.member, str(progress.step), *cells, str(labels))
    console.print(table)
    console.print(
        f"models: {folder}/MEMBER/final   metrics: {folder}/MEMBER/metrics.jsonl", soft_wrap=True, highlight=False
    )


def _measures(progress: MemberProgress) -> Iterable[str]:
    return [
        name
        for record in progress.evals.values()
        for name, value in record.items()
        if name.startswith(("eval/pass@", "eval/maj@")) and isinstance(value, int | float)
    ]


def _before_after(progress: MemberProgress, name: str) -> str:
    values = {step: record[name] for step, record in sorted(progress.evals.items()) if name in record}
    if not values:
        return "-"
    first, last = next(iter(values.values())), list(values.values())[-1]
    return f"{first:.3f}" if len(values) == 1 else f"{first:.3f} -> {last:.3f}"
