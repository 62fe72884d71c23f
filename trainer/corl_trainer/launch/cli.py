"""`corl run`, `corl status` and `corl stop`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from corl_trainer.launch.folder import RunFolder

__all__ = ["run", "status", "stop"]

RunDir = Annotated[Path | None, typer.Argument(metavar="[RUN_DIR]", help="the newest under runs/ by default")]


def run(
    cohort: Annotated[
        Path | None, typer.Argument(metavar="COHORT.YAML", help="the cohort file; of --resume, only to change settings")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="folder of the run; runs/NAME-REWARD-TIME by default")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="peer, self, truth, collective, entropy or certainty; goes before the file's")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="goes before training.steps")] = None,
    seed: Annotated[
        int | None, typer.Option(help="goes before seed, training.seed and training.data_seed, all three")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on where a run stopped: that of --out, or the newest")
    ] = False,
) -> None:
    """Train a whole cohort on this machine: Redis if none is given, a judge and a trainer for each member.

    Everything is started in order and ended with it. A judge or a trainer that dies is started again, a few times.
    Ctrl-C once: each trainer finishes its step, takes a checkpoint, and all stop; twice: stop now. Logs, weights and
    metrics are in the run's folder, which is never written over. CORL_API_KEY and CORL_REDIS are used if set.

    \b
    Examples:
      corl run cohort.yaml
      corl run cohort.yaml --reward self --steps 20 --out runs/ttrl
      corl run --resume --out runs/ttrl

    Exit codes: 0 all steps done; 1 gave up, with the reason; 2 wrong input; 3 stopped on request, checkpointed;
    130 stopped at once.
    """
    from corl_trainer.launch.run import Asked, launch

    code = launch(Asked(cohort, out, reward, steps, resume, seed))
    if code:
        raise typer.Exit(int(code))


def status(
    run_dir: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="the state as it is in run.json")] = False,
) -> None:
    """Show how a run is going, from any terminal: members, processes, judges' replicas and their weights.

    \b
    Examples:
      corl status
      corl status runs/ttrl --json
    """
    from corl_trainer.launch.status import print_status

    folder = _folder(run_dir)
    if as_json:
        typer.echo(folder.read().model_dump_json(indent=1))
    else:
        print_status(folder)


def stop(
    run_dir: RunDir = None,
    now: Annotated[bool, typer.Option("--now", help="do not wait for the steps under way")] = False,
) -> None:
    """End a run as Ctrl-C does: each trainer finishes its step and takes a checkpoint. Waits until it has ended.

    \b
    Examples:
      corl stop
      corl stop runs/ttrl --now
    """
    folder = _folder(run_dir)
    folder.read()
    holder = folder.holder()
    if holder is None:
        typer.echo(f"{folder.path} is not running")
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder, signal.SIGTERM)
        if now:
            # Two signals at once would be one.
            time.sleep(1.0)
            os.kill(holder, signal.SIGTERM)
    typer.echo(f"stopping {folder.path}")
    while folder.holder() == holder:
        time.sleep(0.1)
    typer.echo(f"{folder.path}: {folder.read().phase}")


def _folder(run_dir: Path | None) -> RunFolder:
    from corl_trainer.launch.folder import RunFolder, newest_run

    return RunFolder(run_dir) if run_dir is not None else newest_run(Path("runs"))
