"""Checking of an engine's options: a mistyped name is an error that says which was meant, never a silent default."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from corl_judge.engines.base import EngineError

__all__ = ["parse_options", "refuse_unknown"]

Model = TypeVar("Model", bound=BaseModel)


def refuse_unknown(engine: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise EngineError that names the first option not in `known` and the nearest right name."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(sorted(known)[:20])}"
            raise EngineError(f"engine_options.{name} is not an option of the {engine} engine{hint}")


def parse_options(engine: str, options: Mapping[str, Any], model: type[Model]) -> Model:
    """The options as a typed model. Raises EngineError naming the field, the value and what is wrong with it."""
    refuse_unknown(engine, options, model.model_fields)
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise EngineError(
            f"engine_options.{field} = {first['input']!r} for the {engine} engine: {first['msg']}"
        ) from error
