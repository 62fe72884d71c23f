"""`corl compose`: a Docker Compose file for a cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corl.cohort import load_cohort
from corl.compose import compose_file

__all__ = ["compose"]


def compose(
    cohort_file: Annotated[Path, typer.Argument(metavar="COHORT.YAML", help="the cohort file")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; standard output by default")] = None,
    context: Annotated[str, typer.Option(help="where the project with `docker/` lies, for building images")] = ".",
    folder: Annotated[
        str | None, typer.Option(help="the cohort file's folder as seen from the compose file [default: as given]")
    ] = None,
) -> None:
    """Write a Docker Compose file for a cohort: redis, a judge and a trainer for each member.

    Paths are relative to where the compose file will lie, by default the current folder.

    \b
    Examples:
      corl compose cohort.yaml > docker-compose.yml
      corl compose examples/compose/cohort.yaml -o docker-compose.yml
    """
    text = compose_file(load_cohort(cohort_file), context=context, folder=folder or cohort_file.parent.as_posix())
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{out}: cannot be written: {error.strerror}", param_hint="--out") from error
    typer.echo(f"{out}: written", err=True)
