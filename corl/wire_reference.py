"""The field tables of docs/rest-api.md, written from the models so that they cannot fall behind them.

python -m corl.wire_reference docs/rest-api.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel

from corl import field_tables, wire

__all__ = ["TABLES", "reference", "rewritten"]

BEGIN = "<!-- fields: written by python -m corl.wire_reference -->"
END = "<!-- end of fields -->"

TABLES: tuple[type[BaseModel], ...] = (
    wire.RolloutsRequest,
    wire.Problem,
    wire.Message,
    wire.Sampling,
    wire.RolloutsResponse,
    wire.ProblemRollouts,
    wire.Completion,
    wire.ScoresRequest,
    wire.ScoreItem,
    wire.Policy,
    wire.ScoresResponse,
    wire.ScoredItem,
    wire.Failure,
    wire.Vote,
    wire.RunnerUp,
    wire.AnswerCount,
    wire.WeightsTag,
    wire.JobRequest,
    wire.JobStatus,
    wire.WeightsUpdate,
    wire.WeightsStatus,
    wire.Replica,
    wire.TrainerUpdate,
    wire.TrainerLease,
    wire.VotesDropped,
    wire.ModelInfo,
    wire.TokenizerInfo,
    wire.Limits,
    wire.ErrorBody,
    wire.FieldError,
    wire.TextPart,
    wire.ImagePart,
    wire.ImageURL,
)
"""Every model that goes over the wire, each before what its fields name."""


def reference() -> str:
    """Markdown: one table a model."""
    return "\n\n".join(
        field_tables.field_section(
            f"### {model.__name__}", model, _link, defaults=issubclass(model, wire.Request), nulls=True
        )
        for model in TABLES
    )


def rewritten(page: str) -> str:
    """The page with its tables written anew. Raises ValueError if the page has no place for them."""
    return field_tables.rewritten(page, BEGIN, END, reference())


def _link(model: type[BaseModel]) -> str:
    return f"[{model.__name__}](#{model.__name__.lower()})"


def main(path: Path) -> None:
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
