"""What runs came to, in one table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from corl_trainer.lines import Line

__all__ = ["print_summary"]


def print_summary(console: Console, title: str, lines: Sequence[Line]) -> None:
    """Held-out accuracy of each line at its first and its last evaluation, and how many labels its training read."""
    measures = list(dict.fromkeys(name for line in lines for name in line.evaluations))
    several = any(len(line.logs) > 1 for line in lines)
    table = Table(box=None, pad_edge=False, header_style="bold", title=title)
    table.title_justify = "left"
    table.add_column("member")
    if several:
        table.add_column("runs", justify="right")
    table.add_column("steps", justify="right")
    for name in measures:
        table.add_column(name.removeprefix("eval/"), justify="right")
    table.add_column("labels used", justify="right")
    for line in lines:
        cells = [_before_after(line, name) for name in measures]
        runs = [str(len(line.logs))] if several else []
        table.add_row(line.title, *runs, str(line.steps), *cells, "-" if line.labels is None else str(line.labels))
    console.print(table)


def _before_after(line: Line, measure: str) -> str:
    ends = line.ends(measure)
    if ends is None:
        return "-"
    once = all(len(log.series(measure)[0]) <= 1 for log in line.logs)
    return str(ends[0]) if once else f"{ends[0]} -> {ends[1]}"
