"""`corl report RUN` and `corl compare RUN...`: a run drawn from its metrics, finished or not.

One PNG, and one HTML file that needs nothing beside it (the picture is inside, as SVG).
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from corl_trainer.runlog import MemberLog

__all__ = ["compare", "draw", "page", "report"]

PHASES = ("rollouts", "scores", "waiting", "update", "publish", "evaluate")
PANELS: Sequence[tuple[str, str, Sequence[str]]] = (
    ("Held-out accuracy", "share", ("eval/pass@1", "eval/maj")),
    ("Reward", "mean; spread within a group, dashed", ("reward/mean", "reward/group_std")),
    ("Labeled problems", "share", ("votes/labeled",)),
    ("Agreement with the teacher", "share of problems labeled by both", ("votes/agreement",)),
    ("Share of the own vote", "mean over problems", ("votes/own_share",)),
    ("Completion length", "tokens", ("rollouts/tokens",)),
    ("Entropy", "nats a token", ("entropy",)),
    ("Importance ratio at its bound", "share of tokens", ("sampling/importance_sampling_ratio/clipped",)),
)
"""(title, unit, metrics); `eval/maj` stands for maj@k at whatever k."""
TABLE = ("eval/pass@1", "reward/mean", "votes/labeled", "votes/agreement", "votes/own_share", "rollouts/tokens")


def report(
    run: Annotated[Path, typer.Argument(help="folder of the run", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="folder of the report; that of the run by default")] = None,
) -> None:
    """Draw a run: accuracy, reward, agreement, votes, lengths and seconds by phase, for every member.

    Works while the run goes on. Writes report.png and report.html.
    """
    from corl_trainer.runlog import read_run

    logs = read_run(run)
    if not logs:
        raise typer.BadParameter(f"no member has written {run}/<member>/metrics.jsonl yet", param_hint="RUN")
    folder = out or run
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(logs)
    figure.savefig(folder / "report.png", dpi=110)
    (folder / "report.html").write_text(page(f"Run {run.resolve().name}", figure, logs), encoding="utf-8")
    typer.echo(f"{folder / 'report.png'}\n{folder / 'report.html'}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of two or more runs", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder for compare.png and compare.html")] = Path(),
) -> None:
    """Draw several runs over one another, a line for each member of each run, e.g. one reward source beside another."""
    from corl_trainer.runlog import read_run

    logs: dict[str, MemberLog] = {}
    for run in runs:
        found = read_run(run)
        if not found:
            raise typer.BadParameter(f"{run}: no member has written metrics there", param_hint="RUNS")
        logs |= {f"{run.resolve().name}/{name}": log for name, log in found.items()}
    out.mkdir(parents=True, exist_ok=True)
    figure = draw(logs)
    figure.savefig(out / "compare.png", dpi=110)
    (out / "compare.html").write_text(page("Runs compared", figure, logs), encoding="utf-8")
    typer.echo(f"{out / 'compare.png'}\n{out / 'compare.html'}")


def draw(logs: Mapping[str, MemberLog]) -> Figure:
    """All panels for all members, one colour each."""
    from matplotlib.figure import Figure

    rows = (len(PANELS) + 1 + 2) // 3
    figure = Figure(figsize=(15, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, 3).flat
    colours = {name: f"C{i}" for i, name in enumerate(logs)}
    for (title, unit, names), ax in zip(PANELS, axes, strict=False):
        _lines(ax, logs, colours, names)
        ax.set_title(title, fontsize=11)
        ax.set_ylabel(unit, fontsize=9)
        ax.set_xlabel("step", fontsize=9)
        ax.grid(alpha=0.3)
        if unit.startswith("share"):
            ax.set_ylim(-0.03, 1.03)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8)
        else:
            ax.text(0.5, 0.5, "nothing yet", ha="center", va="center", transform=ax.transAxes, color="grey")
    _seconds(axes[len(PANELS)], logs)
    for ax in list(axes)[len(PANELS) + 1 :]:
        ax.axis("off")
    return figure


def _lines(ax: Axes, logs: Mapping[str, MemberLog], colours: Mapping[str, str], names: Sequence[str]) -> None:
    for name, log in logs.items():
        for place, metric in enumerate(_found(log, names)):
            steps, values = log.series(metric)
            if not steps:
                continue
            label = name if place == 0 else f"{name} {metric.removeprefix('eval/').removeprefix('reward/')}"
            marker = "." if metric.startswith("eval/") or len(steps) == 1 else None
            ax.plot(steps, values, ("-", "--")[place % 2], color=colours[name], label=label, marker=marker, lw=1.4)


def _found(log: MemberLog, names: Sequence[str]) -> list[str]:
    majority = next((key for row in log.evals for key in row if key.startswith("eval/maj@")), None)
    return [name for name in (majority if name == "eval/maj" else name for name in names) if name is not None]


def _seconds(ax: Axes, logs: Mapping[str, MemberLog]) -> None:
    """Mean seconds of a step by phase, stacked, a bar for each member."""
    places = list(range(len(logs)))
    below = [0.0] * len(logs)
    for phase in PHASES:
        means = [_mean([row.get("seconds", {}).get(phase, 0.0) for row in log.steps]) for log in logs.values()]
        ax.bar(places, means, bottom=below, label=phase, width=0.6)
        below = [a + b for a, b in zip(below, means, strict=True)]
    ax.set_xticks(places, list(logs), fontsize=8)
    ax.set_title("A step's seconds by phase", fontsize=11)
    ax.set_ylabel("seconds, mean", fontsize=9)
    ax.legend(fontsize=8)
    ax.grid(alpha=0.3, axis="y")


def page(title: str, figure: Figure, logs: Mapping[str, MemberLog]) -> str:
    """One HTML file with the picture in it, the first and last figures of each member, and what was warned of."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    svg = svg[svg.index("<svg") :]
    warnings = [
        f"<li>{html.escape(name)}, step {row['step']}: {html.escape(str(row.get('message', '')))}</li>"
        for name, log in logs.items()
        for row in log.warnings
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .25rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }} svg {{ width: 100%; height: auto; }}
</style></head><body>
<h1>{html.escape(title)}</h1>
{_table(logs)}
{svg}
<h2>Warnings</h2>
{"<ul>" + "".join(warnings) + "</ul>" if warnings else "<p>None.</p>"}
</body></html>
"""


def _table(logs: Mapping[str, MemberLog]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("member", "state", "step", "s a step", *TABLE))
    rows = []
    for name, log in logs.items():
        cells = [name, _state(log), str(log.steps[-1]["step"]) if log.steps else "0"]
        cells.append(f"{_mean([row.get('seconds', {}).get('step', 0.0) for row in log.steps]):.2f}")
        for metric in TABLE:
            _, values = log.series(metric)
            cells.append(f"{values[0]:.3f} → {values[-1]:.3f}" if values else "")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _state(log: MemberLog) -> str:
    if log.end is None:
        return "running, or killed"
    code: Any = log.end.get("code")
    return {0: "done", 3: "stopped on request", 4: "a service is gone", 5: "replaced"}.get(code, "failed")


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
