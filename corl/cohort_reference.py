"""The field tables of docs/cohort.md, written from the models so that they cannot fall behind them.

python -m corl.cohort_reference docs/cohort.md
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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
                step = f"{name}.NAME" if _is_map(field.annotation) else name
                entry = (f"{path}.{step}".lstrip("."), below)
                if below not in [known for _, known in sections]:
                    sections.append(entry)
    return "\n\n".join(_section(path, model) for path, model in sections)


def rewritten(page: str) -> str:
    """The page with its tables written anew. Raises ValueError if the page has no place for them."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{reference()}\n\n{END}{rest.partition(END)[2]}"


def _section(path: str, model: type[BaseModel]) -> str:
    title = f"### `{path}`" if path else "### Top level"
    lines = [title, ""]
    if path and model.__doc__:
        lines += [" ".join(inspect.cleandoc(model.__doc__).split()), ""]
    lines += ["| field | value | default | |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        cells = [f"`{name}`", _type(field.annotation, field), _default(field), field.description or ""]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _type(annotation: Any, field: FieldInfo | None = None) -> str:
    bounds = _bounds(field.metadata) if field is not None else ""
    if annotation is Path:
        return "path"
    if annotation is Any:
        return "any"
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            return "see below"
        return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(
            annotation, annotation.__name__
        ) + bounds
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0]) + bounds
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not type(None))) + bounds
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict:
        below = _type(args[1])
        return "map of names" if below == "see below" else f"map of names to {below}"
    return str(annotation)


def _bounds(metadata: list[Any]) -> str:
    words = []
    for item in metadata:
        for kind, sign in (
            (annotated_types.Ge, ">="),
            (annotated_types.Gt, ">"),
            (annotated_types.Le, "<="),
            (annotated_types.Lt, "<"),
        ):
            if isinstance(item, kind):
                words.append(f"{sign} {getattr(item, kind.__name__.lower()):g}")
    return f", {', '.join(words)}" if words else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in ({}, []):
        return ""
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _is_map(annotation: Any) -> bool:
    return get_origin(annotation) is dict


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model, get_args(annotation)) if model is not None), None)


def main(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"\n{3,}", "\n\n", rewritten(page)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
