"""The picture of a report, and the page around it."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from corl_trainer.lines import Line
from corl_trainer.runlog import MemberLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "page"]

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
LEGEND_LINES = 8


def draw(lines: Sequence[Line]) -> Figure:
    """All panels, a colour for each line; one over several runs is their mean, in a band from least to greatest."""
    from matplotlib.figure import Figure

    rows = (len(PANELS) + 1 + 2) // 3
    figure = Figure(figsize=(15, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, 3).flat
    for (title, unit, metrics), ax in zip(PANELS, axes, strict=False):
        _curves(ax, lines, metrics)
        ax.set_title(title, fontsize=11)
        ax.set_ylabel(unit, fontsize=9)
        ax.set_xlabel("step", fontsize=9)
        ax.grid(alpha=0.3)
        if unit.startswith("share"):
            ax.set_ylim(-0.03, 1.03)
        handles, _ = ax.get_legend_handles_labels()
        if not handles:
            ax.text(0.5, 0.5, "nothing yet", ha="center", va="center", transform=ax.transAxes, color="grey")
        elif len(lines) <= LEGEND_LINES:
            ax.legend(fontsize=8)
    if len(lines) > LEGEND_LINES:
        _shared_legend(figure, lines)
    _seconds(axes[len(PANELS)], lines)
    for ax in list(axes)[len(PANELS) + 1 :]:
        ax.axis("off")
    return figure


def _curves(ax: Axes, lines: Sequence[Line], metrics: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        for place, metric in enumerate(_found(line, metrics)):
            series = line.series(metric)
            if not series.steps:
                continue
            name = metric.removeprefix("eval/").removeprefix("reward/")
            ax.plot(
                series.steps,
                series.mean,
                ("-", "--")[place % 2],
                color=_colour(number),
                label=line.title if place == 0 else f"{line.title} {name}",
                marker="." if metric.startswith("eval/") or len(series.steps) == 1 else None,
                lw=1.4,
            )
            if len(line.logs) > 1:
                ax.fill_between(series.steps, series.low, series.high, color=_colour(number), alpha=0.12, lw=0)


def _colour(number: int) -> Any:
    from matplotlib import colormaps

    return f"C{number}" if number < 10 else colormaps["tab20b"](number % 20)


def _shared_legend(figure: Figure, lines: Sequence[Line]) -> None:
    """One for all panels: in each it would hide the curves."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_colour(number), label=line.title) for number, line in enumerate(lines)]
    handles.append(Line2D([], [], color="grey", ls="--", label="dashed: maj@k; spread"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)


def _found(line: Line, metrics: Sequence[str]) -> list[str]:
    majority = next((name for name in line.evaluations if name.startswith("eval/maj@")), None)
    return [name for name in (majority if name == "eval/maj" else name for name in metrics) if name is not None]


def _seconds(ax: Axes, lines: Sequence[Line]) -> None:
    """Mean seconds of a step by phase, stacked, a bar for each line."""
    places = list(range(len(lines)))
    begun = [0.0] * len(lines)
    for phase in PHASES:
        means = [line.seconds(phase) for line in lines]
        ax.barh(places, means, left=begun, label=phase, height=0.7)
        begun = [a + b for a, b in zip(begun, means, strict=True)]
    for place, line in zip(places, lines, strict=True):
        ax.text(0.01, place, line.title, transform=ax.get_yaxis_transform(), va="center", fontsize=7)
    ax.set_yticks([])
    ax.invert_yaxis()
    ax.set_title("A step's seconds by phase", fontsize=11)
    ax.set_xlabel("seconds, mean", fontsize=9)
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.grid(alpha=0.3, axis="x")


def page(title: str, figure: Figure, lines: Sequence[Line]) -> str:
    """One HTML file with the picture in it, the first and last figures of each line, and what was warned of."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    svg = svg[svg.index("<svg") :]
    warnings = [
        f"<li>{html.escape(line.title)}, step {row['step']}: {html.escape(str(row.get('message', '')))}</li>"
        for line in lines
        for log in line.logs
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
{_table(lines)}
{svg}
<h2>Warnings</h2>
{"<ul>" + "".join(warnings) + "</ul>" if warnings else "<p>None.</p>"}
</body></html>
"""


def _table(lines: Sequence[Line]) -> str:
    several = any(len(line.logs) > 1 for line in lines)
    metrics = [*TABLE[:1], *dict.fromkeys(name for line in lines for name in _found(line, ["eval/maj"])), *TABLE[1:]]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("member", "state", "step", "s a step", *metrics))
    rows = []
    for line in lines:
        state = ", ".join(dict.fromkeys(_state(log) for log in line.logs))
        cells = [line.title, state, str(line.steps), f"{line.seconds('step'):.2f}"]
        cells += [f"{ends[0]} → {ends[1]}" if (ends := line.ends(metric)) else "" for metric in metrics]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    note = "<p>Over several runs: mean ± standard deviation.</p>" if several else ""
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{note}"


def _state(log: MemberLog) -> str:
    if log.end is None:
        return "running, or killed"
    code: Any = log.end.get("code")
    return {0: "done", 3: "stopped on request", 4: "a service is gone", 5: "replaced"}.get(code, "failed")
