"""The field tables of docs/cohort.md, written from the models so that they cannot fall behind them.

python -m corl.cohort_reference docs/cohort.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from corl import field_tables
from corl.cohort_models import Cohort

__all__ = ["reference", "rewritten"]

BEGIN = "<!-- fields: written by python -m corl.cohort_reference -->"
END = "<!-- end of fields -->"


def reference() -> str:
    """Markdown: one table a section of the file."""
    sections: list[tuple[str, type[BaseModel]]] = [("", Cohort)]
    for path, model in sections:
        for name, field in model.model_fields.items():
            below = _model(field.annotation)
            if below is not None:
                step = f"{name}.NAME" if get_origin(field.annotation) is dict else name
                entry = (f"{path}.{step}".lstrip("."), below)
                if below not in [known for _, known in sections]:
                    sections.append(entry)
    return "\n\n".join(
        field_tables.field_section(
            f"### `{path}`" if path else "### Top level", model, lambda _: "see below", described=bool(path)
        )
        for path, model in sections
    )


def rewritten(page: str) -> str:
    """The page with its tables written anew. Raises ValueError if the page has no place for them."""
    return field_tables.rewritten(page, BEGIN, END, reference())


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model, get_args(annotation)) if model is not None), None)


def main(path: Path) -> None:
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
