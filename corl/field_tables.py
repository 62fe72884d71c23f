"""Tables of fields for the documentation, written from pydantic models so that they cannot fall behind them."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

__all__ = ["Named", "field_section", "rewritten"]

Named = Callable[[type[BaseModel]], str]
"""How a field shows that its value is another model."""


def field_section(
    title: str,
    model: type[BaseModel],
    named: Named,
    *,
    described: bool = True,
    defaults: bool = True,
    nulls: bool = False,
) -> str:
    """Markdown: a heading, the model's docstring if `described`, and a row for each field.

    `defaults`: with a column of them; `nulls`: say where null is a value.
    """
    lines = [title, ""]
    if described and model.__doc__:
        lines += [" ".join(inspect.cleandoc(model.__doc__).split()), ""]
    lines.append("| field | value | default | |" if defaults else "| field | value | |")
    lines.append("| --- | --- | --- | --- |" if defaults else "| --- | --- | --- |")
    for name, field in model.model_fields.items():
        value = _type(field.annotation, named, field)
        if nulls and type(None) in get_args(field.annotation):
            value += " or null"
        cells = [f"`{name}`", value, *([_default(field)] if defaults else []), field.description or ""]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def rewritten(page: str, begin: str, end: str, tables: str) -> str:
    """The page with what lies between two lines written anew. Raises ValueError if the page has no such place."""
    if begin not in page or end not in page:
        raise ValueError(f"the page needs the lines {begin} and {end}")
    head, _, rest = page.partition(begin)
    return re.sub(r"\n{3,}", "\n\n", f"{head}{begin}\n\n{tables}\n\n{end}{rest.partition(end)[2]}")


def _type(annotation: Any, named: Named, field: FieldInfo | None = None) -> str:
    bounds = _bounds(field.metadata) if field is not None else ""
    if annotation is Path:
        return "path"
    if annotation is Any:
        return "any"
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            return named(annotation)
        return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(
            annotation, annotation.__name__
        ) + bounds
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], named) + bounds
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin in (Union, types.UnionType):
        given = dict.fromkeys(_type(arg, named) for arg in args if arg is not type(None))
        return " or ".join(given) + bounds
    if origin is list:
        below = _type(args[0], named)
        return "list, see below" if below == "see below" else f"list of {below}"
    if origin is dict:
        below = _type(args[1], named)
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
                words.append(f"{sign} {_number(getattr(item, kind.__name__.lower()))}")
    return f", {', '.join(words)}" if words else ""


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in ({}, []):
        return ""
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
