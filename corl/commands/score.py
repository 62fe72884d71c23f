"""`corl score`: a file of prompts and completions against a judge's votes."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from corl.client import JudgeClient
from corl.errors import CorlError, JudgeDenied
from corl.explain import explain
from corl.scoring import Row, Sink, key_of, read_rows, score_rows
from corl.wire import Policy

__all__ = ["score"]


class KeyRefused(CorlError):
    """The judge wants another key."""


class Task(StrEnum):
    math = "math"
    choice = "choice"
    text = "text"


class Ties(StrEnum):
    abstain = "abstain"
    first = "first"


def score(
    rows: Annotated[Path, typer.Argument(metavar="ROWS.JSONL", help="prompts and completions, one problem a line")],
    judge: Annotated[str, typer.Option(help="the judge's address, such as http://127.0.0.1:8101")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="rewards and votes; else standard output")
    ] = None,
    show: Annotated[bool, typer.Option("--explain", help="say for people why each vote fell as it did")] = False,
    samples: Annotated[int, typer.Option(min=1, help="completions of a vote")] = 8,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="least share of the winner")] = 0.0,
    min_parsed: Annotated[int, typer.Option(min=1, help="least number of answers")] = 2,
    ties: Annotated[Ties, typer.Option(help="what a tie is")] = Ties.abstain,
    task: Annotated[Task, typer.Option(help="how answers are read, where a row does not say")] = Task.math,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="problems in one request")] = 64,
    deadline: Annotated[float, typer.Option(min=0.1, help="seconds for one request, retries included")] = 1800.0,
) -> int:
    """Reward the completions of a file by a judge's votes.

    A row is {"prompt", "completions"}, with "id", "problem_id", "task" and "options" where wanted; a prompt is text or
    chat messages. Each row of the output holds its rewards (null without a label), answers and vote.

    Run again with the same --output it goes on where it stopped; problems that failed are tried again. The key is
    read from CORL_API_KEY. Exit code 1 if a problem failed.

    \b
    Examples:
      corl score rows.jsonl --judge http://127.0.0.1:8101 -o scored.jsonl
      corl score rows.jsonl --judge http://127.0.0.1:8101 --explain
    """
    policy = Policy(samples=samples, threshold=threshold, ties=ties.value, min_parsed=min_parsed)
    everything = read_rows(rows, task.value)
    keys = [key_of(row, policy) for row in everything]
    errors = Console(stderr=True, highlight=False)
    counts = dict.fromkeys(("scored", "unlabeled", "failed"), 0)
    with (
        Sink.open(output, keys, quiet=show and output is None) as sink,
        JudgeClient(judge, _key(judge), deadline) as client,
        _progress(errors) as progress,
    ):
        todo = [(row, key) for row, key in zip(everything, keys, strict=True) if key not in sink.done]
        bar = progress.add_task("scoring", total=len(everything), completed=len(everything) - len(todo))
        for start in range(0, len(todo), batch):
            part = todo[start : start + batch]
            try:
                items = score_rows(client, [row for row, _ in part], policy, histogram=show)
            except JudgeDenied as error:
                raise KeyRefused(f"{error}: set CORL_API_KEY to the judge's key") from error
            for (row, key), item in zip(part, items, strict=True):
                counts[item.status] += 1
                if item.status == "failed":
                    said = "failed" if item.failure is None else f"{item.failure.kind}: {item.failure.message}"
                    progress.console.print(f"{rows}:{row.line}: {said}", markup=False, soft_wrap=True)
                    continue
                sink.write(key, row, item)
                if show:
                    typer.echo(explain(_title(row), item, policy))
            sink.flush()
            progress.advance(bar, len(part))
    skipped = len(everything) - len(todo)
    before = f", {skipped} were there already" if skipped else ""
    errors.print(f"{counts['scored']} scored, {counts['unlabeled']} without a label, {counts['failed']} failed{before}")
    return 1 if counts["failed"] else 0


def _key(judge: str) -> str | None:
    inside = "@" in judge.partition("://")[2].partition("/")[0]
    return None if inside else os.environ.get("CORL_API_KEY")


def _title(row: Row) -> str:
    return f"line {row.line}, problem {row.item.problem_id}"


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
