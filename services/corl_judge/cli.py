"""`corl judge`: one member's peer judge as a process."""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from corl.cohort import Cohort, load_cohort
from corl.errors import CorlError
from corl_judge.settings import Settings, resolve

__all__ = ["cohort_settings", "judge"]

NOT_FLAGS = frozenset({"api_key", "cohort_file"})
SECRET = frozenset({"api_key", "redis"})
EXAMPLE_OPTIONS = '{"dtype": "float32"}'
FIRST = ("member", "host", "port", "redis", "weights", "run", "engine")


class SettingsError(CorlError):
    """A flag, a variable or the cohort file holds a value that a judge cannot be run with."""


def cohort_settings(cohort: Cohort, member: str) -> dict[str, Any]:
    """What the cohort file says of a member's judge. Raises CohortError for an unknown member."""
    model = cohort.model_path(member)
    own = cohort.members[member]
    limits = cohort.judge.model_dump(exclude={"replicas"})
    given: dict[str, Any] = {
        **limits,
        "member": member,
        "model": model,
        "revision": own.revision,
        "frozen": own.frozen,
        "engine": own.engine,
        "engine_options": own.engine_options,
        "cohort_file": cohort.path,
        "seed": cohort.seed,
        "redis": cohort.redis,
        "weights": cohort.weights,
        "start_wait_s": cohort.vote.start_wait_s,
        "vote_max_tokens": cohort.rollouts.max_tokens,
        "vote_temperature": cohort.rollouts.temperature,
        "keep_steps": max(Settings.model_fields["keep_steps"].default, 2 * cohort.training.save_every),
    }
    if given["weights"] is not None:
        given["weights"] = cohort.base_dir / given["weights"]
    return given


def judge(cohort: Path | None, **flags: Any) -> int:
    """One member's peer judge: rollouts for its trainer, rewards by its votes, weights that change while it runs.

    Settings come from the flag, else the variable CORL_NAME, else cohort.yaml, else the default. The key is read from
    CORL_API_KEY only, and is needed for any address but loopback. Without --redis a local Redis is started.

    \b
    Examples:
      corl judge --model Qwen/Qwen2.5-3B --member peer --port 8101
      corl judge cohort.yaml --member a --redis redis://127.0.0.1:6379 --weights runs/weights
      corl judge --engine openai --model org/name --engine-options '{"base_url": "https://host/v1"}'

    Exit codes: 0 drained after SIGTERM or Ctrl-C; 1 cannot start, or its engine died; 2 wrong input.
    """
    from corl_judge.serve import serve

    return serve(settings_from(cohort, flags))


def settings_from(cohort: Path | None, flags: dict[str, Any]) -> Settings:
    """Raises CohortError or SettingsError, with the name of what is wrong."""
    given: dict[str, Any] = {}
    if isinstance(flags.get("engine_options"), str):
        try:
            flags["engine_options"] = json.loads(flags["engine_options"])
        except ValueError as error:
            raise SettingsError(f"--engine-options: {error}: give a JSON object such as {EXAMPLE_OPTIONS}") from error
    if cohort is not None:
        loaded = load_cohort(cohort)
        member = flags.get("member") or EnvSettingsSource(Settings)().get("member")
        if member is None:
            names = ", ".join(loaded.members)
            raise SettingsError(f"which member? give --member with one of {names}")
        given = cohort_settings(loaded, member)
    elif not flags.get("model"):
        raise SettingsError("give a cohort file and --member, or --model")
    elif (flags.get("engine") or "") != "openai" and _is_path(flags["model"]) and not Path(flags["model"]).is_dir():
        raise SettingsError(f"--model: no folder {flags['model']!r}; make it, or give a hub id such as 'org/name'")
    try:
        return resolve({k: v for k, v in given.items() if v is not None}, flags)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        if not name:
            raise SettingsError(message) from error
        given_as = f"--{name.replace('_', '-')} or CORL_{name.upper()}" if name not in NOT_FLAGS else name
        shown = "" if name in SECRET else f", got {str(first['input'])[:80]!r}"
        raise SettingsError(f"{given_as}: {message}{shown}") from error


def _is_path(model: str) -> bool:
    """Whether a model can only be meant as a folder."""
    return model.startswith((".", "/", "~")) or model.endswith("/")


def _parameters() -> list[inspect.Parameter]:
    """One option a setting, so that --help shows each with its default and its variable."""
    names = [*FIRST, *(name for name in Settings.model_fields if name not in FIRST and name not in NOT_FLAGS)]
    options = [_option(name, Settings.model_fields[name]) for name in names]
    argument = Annotated[Path | None, typer.Argument(metavar="COHORT.YAML", help="the cohort file")]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [inspect.Parameter("cohort", kind, default=None, annotation=argument), *options]


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    annotation: Any = field.annotation
    inner = [a for a in typing.get_args(annotation) if a is not types.NoneType]
    if isinstance(annotation, types.UnionType):
        annotation = inner[0]
    if annotation is SecretStr or typing.get_origin(annotation) is dict:
        annotation = str
    default = "a local one" if name == "redis" else field.get_default(call_default_factory=True)
    shown = "" if default is None or default == "" or default == {} else f" [default: {default}]"
    flags = f"--{name.replace('_', '-')}"
    option = typer.Option(
        flags if annotation is not bool else f"{flags}/--no-{name.replace('_', '-')}",
        help=f"{field.description or name.replace('_', ' ')}{shown} (CORL_{name.upper()})",
        show_default=False,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[annotation | None, option])


def _declare() -> None:
    parameters = _parameters()
    judge.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    judge.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_declare()


def main() -> None:
    """`python -m corl_judge`."""
    from importlib.metadata import EntryPoint

    from corl.cli import run

    entry = EntryPoint("judge", "corl_judge.cli:judge", "corl.commands")
    sys.exit(run(["judge", *sys.argv[1:]], {"judge": entry}))
