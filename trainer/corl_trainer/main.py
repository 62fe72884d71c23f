"""`corl train`: the trainer of one member, from the command line."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from corl.cohort import RewardSource

__all__ = ["app", "train"]


def train(
    cohort: Annotated[Path, typer.Argument(metavar="COHORT.YAML", help="the cohort file", show_default=False)],
    member: Annotated[str, typer.Option(help="whom to train", show_default=False)],
    run: Annotated[str, typer.Option(help="name of the run; the same for all members", show_default=False)],
    run_dir: Annotated[
        Path | None, typer.Option(help="folder of the run; runs/<run> by default", show_default=False)
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEMBER=URL", help="address of a judge; goes before members.<name>.url", show_default=False
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="folder shared with the judges; `weights` of the cohort file, or <run-dir>/weights"),
    ] = None,
    resume_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="go on from this checkpoint (0: start anew) and delete later ones; the last by default"
        ),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="peer, self, truth, collective, entropy or certainty; goes before the file's")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="at the end, draw the run with what its other members have written by then")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="CORL_API_KEY", help="key of the judges", show_envvar=True, show_default=False)
    ] = None,
) -> None:
    """Train one member: rollouts from its own judge, rewards from its teachers' judges, weights back to its own.

    Goes on from the last whole checkpoint of the run, if there is one. Several processes: `torchrun --nproc-per-node 2
    -m corl_trainer -- ...` or `accelerate launch -m corl_trainer -- ...` with the same arguments (mind the `--`).

    \b
    Examples:
      corl train cohort.yaml --member a --run r1 --weights /shared/weights \\
          --judge a=http://host-a:8001 --judge b=http://host-b:8001
      corl train cohort.yaml --member a --run r1 --resume-step 20

    Exit codes: 0 done; 1 unexpected error; 2 wrong input; 3 stopped on request (SIGTERM, Ctrl-C), checkpointed; 4 a
    service stayed away, checkpointed; 5 a newer trainer of this member took over.
    """
    from corl.cohort import CohortError, load_cohort
    from corl_trainer.stops import ExitCode, SettingsError

    _quiet()
    try:
        from corl_trainer.settings import TrainerSettings

        settings = TrainerSettings.build(
            load_cohort(cohort, reward=cast("RewardSource | None", reward)),
            member,
            run=run,
            run_dir=run_dir or Path("runs") / run,
            judges=_addresses(judge or []),
            weights=weights,
            api_key=api_key,
            resume_step=resume_step,
        )
        from corl_trainer.member import train_member

        code = train_member(settings)
        if report and os.environ.get("RANK", "0") == "0":
            _report(settings.run_dir)
    except (CohortError, SettingsError) as error:
        typer.echo(f"corl train: {error}", err=True)
        code = ExitCode.USAGE
    if code:
        raise typer.Exit(int(code))


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command(name="train")(train)


def _report(run_dir: Path) -> None:
    """A run is no less done without its report."""
    from corl_trainer.lines import NoMetrics
    from corl_trainer.report import write_report

    try:
        write_report(run_dir)
    except (NoMetrics, OSError) as error:
        typer.echo(f"corl train: no report: {error}", err=True)


def _addresses(pairs: list[str]) -> dict[str, str]:
    from corl_trainer.stops import SettingsError

    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, url = pair.partition("=")
        if not (name and separator and url):
            raise SettingsError(f"--judge {pair!r}: write it as MEMBER=URL, e.g. --judge a=http://127.0.0.1:8001")
        found[name] = url
    return found


def _quiet() -> None:
    """Logs that a user of this command needs, and no bars of model loading."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("httpx", "httpcore", "datasets", "filelock", "fsspec", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What libraries say to one another of their next releases.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft|accelerate)\.")
