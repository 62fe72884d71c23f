"""`corl report RUN` and `corl compare RUN...`: runs drawn from their metrics, finished or not.

One PNG, and one HTML file that needs nothing beside it (the picture is inside, as SVG).
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from corl_trainer.lines import Line

__all__ = ["compare", "report", "write_report"]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="folder of the run", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="folder of the report; that of the run by default")] = None,
) -> None:
    """Draw a run: accuracy, reward, agreement, votes, lengths and seconds by phase, for every member.

    Works while the run goes on. Prints held-out accuracy before and after, and writes report.png and report.html.

    \b
    Examples:
      corl report runs/nano-peer-20260831-101500
      corl report runs/ttrl --out reports/ttrl
    """
    from corl_trainer.lines import NoMetrics

    try:
        write_report(run, out)
    except NoMetrics as error:
        raise typer.BadParameter(str(error), param_hint="RUN") from error


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR", help="folders of two or more runs", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="folder for compare.png and compare.html")] = Path(),
) -> None:
    """Draw several runs over one another, a line for each member of each run, e.g. one reward source beside another.

    Runs whose cohort files differ in nothing but seeds are one line: their mean, with a band from the least to the
    greatest, and in the table the mean and the standard deviation.

    \b
    Examples:
      corl compare runs/peer runs/ttrl --out reports
      for seed in 1 2 3; do corl run cohort.yaml --seed $seed --out runs/peer-$seed; done
      corl compare runs/peer-*
    """
    from corl_trainer.lines import NoMetrics, compared

    begun = [run for run in runs if any(run.glob("*/metrics.jsonl")) or not run.is_dir()]
    for run in runs:
        if begun and run not in begun:
            typer.echo(f"corl compare: {run} is left out: no member has written its metrics.jsonl", err=True)
    try:
        lines = compared(begun or runs)
    except NoMetrics as error:
        raise typer.BadParameter(str(error), param_hint="RUNS") from error
    _write("Runs compared", "held-out problems, before and after", lines, out, "compare")


def write_report(run: Path, out: Path | None = None) -> None:
    """Print the table of a run and write its report. Raises NoMetrics.

    Trainers of one run may do so at the same time: one after the other, so that the last sees what all have written.
    """
    from corl_trainer.lines import of_run

    of_run(run)
    folder = out or run
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _write(f"Run {run.resolve().name}", "held-out problems, before and after", of_run(run), folder, "report")


def _write(title: str, heading: str, lines: Sequence[Line], folder: Path, stem: str) -> None:
    from rich.console import Console

    from corl_trainer.drawing import draw, page
    from corl_trainer.summary import print_summary

    print_summary(Console(width=None if sys.stdout.isatty() else 160), heading, lines)
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(lines)
    picture, text = folder / f"{stem}.png", folder / f"{stem}.html"
    partial = folder / f".{stem}.{os.getpid()}.partial"
    figure.savefig(partial, dpi=110, format="png")
    partial.replace(picture)
    partial.write_text(page(title, figure, lines), encoding="utf-8")
    partial.replace(text)
    typer.echo(f"report: {picture}  {text}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".report.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            typer.echo(f"{folder}: {error}: this file system has no locks; `corl report` draws a run anew", err=True)
        yield
