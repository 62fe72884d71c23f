"""`corl check`: read everything, start nothing, download nothing."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from corl.cohort import Cohort, CohortError, HeldOut, ProblemSet, load_cohort, load_heldout, load_problems
from corl.model_size import judge_bytes, model_size, trainer_bytes
from corl.problem_sources import is_json_lines

__all__ = ["CHECKS", "check"]

CHECKS = "corl.checks"
"""Entry points that check the part of a cohort which their package knows."""


def check(
    cohort_file: Annotated[Path, typer.Argument(metavar="COHORT.YAML", help="the cohort file")],
    reward: Annotated[str | None, typer.Option(help="another reward source than the file's")] = None,
) -> None:
    """Read a cohort file and all that it names, and say what would run where.

    Nothing is started and nothing is downloaded: a data set or model that is not on this machine yet is said to be
    missing. Memory is a lower bound, from local model files: a judge's weights (on transformers twice, for it holds the
    new ones beside them while it loads); a trainer's weights, gradients and Adam's states.

    \b
    Examples:
      corl check cohort.yaml
      corl check cohort.yaml --reward truth
    """
    overrides = {} if reward is None else {"reward": reward}
    # Read by `datasets` and `huggingface_hub` when they are imported, which is later than here.
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    cohort = load_cohort(cohort_file, overrides=overrides)
    notes = [*_models(cohort), *_others(cohort)]
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(_headline(cohort), soft_wrap=True)
    console.print(_members(cohort))
    for remark in [*notes, *_problems(cohort, console)]:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
    console.print(f"{cohort_file}: ok", markup=False, soft_wrap=True)


def _headline(cohort: Cohort) -> str:
    settings, rollouts = cohort.training, cohort.rollouts
    topology = cohort.topology if isinstance(cohort.topology, str) else "explicit"
    return (
        f"cohort {cohort.name}: {len(cohort.members)} members, reward {cohort.reward}, topology {topology}, "
        f"{settings.steps} steps of {rollouts.problems_per_step} problems x {rollouts.n} completions "
        f"of at most {rollouts.max_tokens} tokens"
    )


def _members(cohort: Cohort) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("member", "model", "view", "teachers", "engine", "judges", "devices", "memory at least"):
        table.add_column(title)
    for name, member in cohort.members.items():
        devices = f"judge {member.devices.judge or 'any'}"
        if not member.frozen:
            devices += f", trainer {member.devices.trainer or 'any'}"
        where = member.url or "a free port"
        table.add_row(
            name,
            member.model,
            member.view,
            ", ".join(cohort.teachers(name)) or ("frozen" if member.frozen else "-"),
            member.engine,
            f"{cohort.replicas(name)} at {where}",
            devices,
            _memory(cohort, name),
        )
    return table


def _memory(cohort: Cohort, name: str) -> str:
    folder = Path(cohort.model_path(name))
    size = model_size(folder) if folder.is_absolute() else None
    if size is None:
        return "unknown (model not local)"
    member = cohort.members[name]
    parts = f"judge {_shown(judge_bytes(size, member.engine, member.engine_options))}"
    if not member.frozen:
        parts += f", trainer {_shown(trainer_bytes(size, cohort.training_for(name)))}"
    return f"{parts} ({'' if size.exact else 'about '}{size.parameters / 1e6:,.1f}M parameters)"


def _shown(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _others(cohort: Cohort) -> list[str]:
    """What other packages have to say of a cohort: entry points that take one and raise CohortError."""
    notes = []
    for entry in entry_points(group=CHECKS):
        try:
            entry.load()(cohort)
        except ModuleNotFoundError as error:
            notes.append(f"{entry.name} settings not checked: the package {error.name!r} is not installed")
    return notes


def _models(cohort: Cohort) -> list[str]:
    """Problems with model folders are errors; a model to be downloaded is a note."""
    notes = []
    for name, member in cohort.members.items():
        if not Path(cohort.model_path(name)).is_absolute() and member.engine != "openai":
            notes.append(f"members.{name}.model: {member.model!r} is no local folder: taken from the hub at start")
    return notes


def _problems(cohort: Cohort, console: Console) -> list[str]:
    notes: list[str] = []
    problems: ProblemSet | None = None
    heldout: list[HeldOut] = []
    settings = cohort.problems
    try:
        problems = load_problems(cohort)
        views = f" in {len(problems.texts)} views" if len(problems.texts) > 1 else ""
        answers = "with answers" if problems.answers is not None else "without answers"
        console.print(f"training problems: {len(problems)}{views}, {answers}")
    except CohortError as error:
        if all(source.dataset is None for source in [settings.train, *settings.views.values()]):
            raise
        notes.append(f"training problems not counted: {error}")
    try:
        heldout = load_heldout(cohort)
        console.print(f"held-out problems: {len(heldout) or 'none'}")
    except CohortError as error:
        if settings.heldout is None or is_json_lines(settings.heldout) or settings.heldout.dataset is None:
            raise
        notes.append(f"held-out problems not counted: {error}")
    if problems is not None:
        trained_on = {text for texts in problems.texts.values() for text in texts.values()}
        shared = sum(row.problem in trained_on for row in heldout)
        if shared:
            notes.append(f"{shared} of {len(heldout)} held-out problems are training problems too")
        wanted = cohort.rollouts.problems_per_step
        if wanted > len(problems):
            notes.append(f"rollouts.problems_per_step is {wanted}, more than the {len(problems)} problems there are")
    return notes
