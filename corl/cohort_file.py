"""Reading cohort.yaml: preset, overrides, types, relations; every fault with its line, field, value and remedy."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from corl.cohort_models import Cohort, RewardSource
from corl.cohort_rules import broken_rules
from corl.errors import CohortError
from corl.faults import Fault, nearest
from corl.presets import PRESETS, preset
from corl.problem_sources import is_json_lines
from corl.problems import load_problems
from corl.yaml_lines import Lines, read_yaml

__all__ = ["load_cohort"]

Loc = tuple[str | int, ...]


def load_cohort(
    path: str | Path, *, reward: RewardSource | None = None, overrides: Mapping[str, Any] | None = None
) -> Cohort:
    """Read and check a cohort file.

    `reward` replaces the file's reward source; `overrides` replaces fields by their dotted names, e.g.
    {"training.steps": 5}. JSON Lines are read at once (their training answers dropped unless the
    reward source is `truth`); other formats are read by `load_problems`. Model folders are looked for when
    `Cohort.model_path` is asked, since a host may hold only its own member's.

    Raises CohortError with one fault a line.
    """
    file = Path(path).expanduser()
    data, lines = read_yaml(file)
    changed = dict(overrides or {})
    if reward is not None:
        changed["reward"] = reward
    for name, value in changed.items():
        _set(data, lines, name, value)
    if isinstance(data.get("preset"), str) and data["preset"] in PRESETS:
        data = _merged(preset(data["preset"]), data)
    shown = str(file)
    try:
        cohort = Cohort.model_validate(data)
    except ValidationError as error:
        raise CohortError(_explain(error.errors(), data, lines, shown)) from None
    cohort._path = file.absolute()
    broken = [_fault(rule.at, rule.message, lines, shown) for rule in broken_rules(cohort)]
    if broken:
        raise CohortError(broken)
    if all(is_json_lines(source) for source in [cohort.problems.train, *cohort.problems.views.values()]):
        cohort._problems = load_problems(cohort)
    return cohort


def _set(data: dict[str, Any], lines: Lines, name: str, value: Any) -> None:
    """Put an override in its place and forget the lines of what it replaces."""
    *parents, last = name.split(".")
    target = data
    for parent in parents:
        below = target.get(parent)
        if below is None:
            below = target[parent] = {}
        if not isinstance(below, dict):
            raise CohortError(Fault(f"cannot be set: {parent!r} is not a mapping", field=name))
        target = below
    target[last] = copy.deepcopy(value)
    at = tuple(name.split("."))
    for known in [known for known in lines if known[: len(at)] == at]:
        del lines[known]


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` where it says something, else `under`."""
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        result[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _fault(at: Loc, message: str, lines: Lines, file: str) -> Fault:
    line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), None)
    return Fault(message, field=".".join(map(str, at)) or None, file=file, line=line)


def _explain(errors: list[ErrorDetails], data: dict[str, Any], lines: Lines, file: str) -> list[Fault]:
    """One fault a field: pydantic reports each branch of a union apart."""
    messages: dict[Loc, list[str]] = {}
    mistyped = [_remedy(error["loc"]) for error in errors if error["type"] == "extra_forbidden"]
    for error in errors:
        at = _place(error, data)
        if error["type"] == "missing" and any(repr(str(at[-1])) in remedy for remedy in mistyped):
            continue  # it is there under a mistyped name
        text = _message(error, at, data)
        if text not in messages.setdefault(at, []):
            messages[at].append(text)
    inner = [at for at in messages if not any(at != other and other[: len(at)] == at for other in messages)]
    return [_fault(at, _joined(messages[at], at, data), lines, file) for at in inner]


def _joined(messages: list[str], at: Loc, data: Any) -> str:
    bare = messages[0].startswith(("unknown", "required"))
    return messages[0] if bare else f"{_value(at, data)}: {' or '.join(messages)}"


def _place(error: ErrorDetails, data: Any) -> Loc:
    """The error's place in the file: pydantic's `loc` without the names of union branches."""
    at: list[str | int] = []
    here: Any = data
    for step in error["loc"]:
        entries = here if isinstance(here, dict) else dict(enumerate(here)) if isinstance(here, list) else {}
        if step in entries:
            here = entries[step]
            at.append(step)
    if error["type"] == "missing":
        at.append(error["loc"][-1])
    return tuple(at)


def _value(at: Loc, data: Any) -> str:
    here: Any = data
    for step in at:
        here = here[step]
    text = repr(here)
    return text if len(text) <= 80 else text[:77] + "..."


def _message(error: ErrorDetails, at: Loc, data: Any) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"unknown key; {_remedy(at)}"
    if kind == "missing":
        return f"required{_about(at)}: add it"
    if kind == "literal_error":
        expected = str(error.get("ctx", {}).get("expected", ""))
        words = [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]
        value = error["input"]
        return f"no such choice; {nearest(value, words)}" if isinstance(value, str) else f"must be {expected}"
    if kind == "string_pattern_mismatch" and error["loc"][-1] == "[key]":
        return "a member's name is small letters, digits and dashes, at most 41 of them"
    if kind == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if error["input"] is None:
        return "is empty: give a value or remove the key"
    if kind in ("model_type", "dict_type"):
        return "must be a mapping"
    text = error["msg"].removeprefix("Input should be ")
    return f"must be {text}" if text != error["msg"] else text


def _remedy(at: Loc) -> str:
    known = list(_model_at(at[:-1]).model_fields)
    word = str(at[-1])
    remedy = nearest(word, known)
    if remedy.startswith("did"):
        return remedy
    elsewhere = [f"{group}.{word}" for group, model in _groups().items() if word in model.model_fields]
    return f"it belongs to {' or '.join(elsewhere)}" if elsewhere else remedy


def _about(at: Loc) -> str:
    field = _model_at(at[:-1]).model_fields.get(str(at[-1]))
    return f" ({field.description})" if field is not None and field.description else ""


def _groups() -> dict[str, type[BaseModel]]:
    models = {name: _model_of(field.annotation) for name, field in Cohort.model_fields.items()}
    return {name: model for name, model in models.items() if model is not None}


def _model_at(at: Loc) -> type[BaseModel]:
    """The model that describes the mapping at a place in the file."""
    model: type[BaseModel] = Cohort
    for step in at:
        field = model.model_fields.get(str(step))
        below = _model_of(field.annotation) if field is not None else None
        model = below or model  # a key of a mapping of models, such as a member's name
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = get_origin(annotation)
    inner: Iterable[Any] = ()
    if origin is Annotated:
        inner = get_args(annotation)[:1]
    elif origin in (Union, types.UnionType):
        inner = get_args(annotation)
    elif origin is dict:
        inner = get_args(annotation)[1:]
    return next((model for model in map(_model_of, inner) if model is not None), None)
