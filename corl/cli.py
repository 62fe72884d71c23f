"""The `corl` command. Its subcommands are entry points of the group `corl.commands`, loaded when they are asked for.

An entry point is a function (one command) or a `typer.Typer` (a group of commands). Its module must be light: heavy
imports belong inside the functions, so that `corl --help` answers at once. Input that is wrong is refused by raising
CorlError or typer.BadParameter; both are said in one line, without a traceback.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

import typer

import corl
from corl.errors import CorlError, JudgeDenied, JudgeError, JudgeRefused
from corl.faults import nearest

__all__ = ["GROUP", "main"]

GROUP = "corl.commands"
EXTRAS = {"corl_judge": "judge", "corl_trainer": "trainer"}
"""Which extra of `pip install corl[...]` brings what a package needs."""

HELP = """Usage: corl COMMAND [ARGUMENTS]

Train a cohort of language models without labels, each rewarded by its peers' votes.

Examples:
  corl check cohort.yaml             what is in the file, and what would run where
  corl run cohort.yaml               the whole cohort on this machine
  corl judge --member a cohort.yaml  one member's peer judge
  corl train --member a cohort.yaml  one member's trainer

Commands:
{commands}

`corl COMMAND --help` tells more. Exit codes: 0 done; 1 failed; 2 wrong input; 130 interrupted.
"""


class UsageFault(Exception):
    """Wrong use of `corl` itself."""


def installed_commands() -> dict[str, EntryPoint]:
    """Entry points by command name."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def load(entry: EntryPoint) -> typer.Typer:
    """The command behind an entry point. Raises UsageFault if one of its packages is not installed."""
    try:
        target = entry.load()
    except ModuleNotFoundError as error:
        raise _missing(entry, error) from error
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command(name=entry.name)(target)
    return app


def main(arguments: Iterable[str] | None = None) -> None:
    """Run `corl` and exit."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str], entries: Mapping[str, EntryPoint] | None = None) -> int:
    """The exit code of `corl ARGUMENTS`: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    entries = installed_commands() if entries is None else entries
    try:
        return _dispatch(arguments, entries)
    except (UsageFault, CorlError) as error:
        failed = isinstance(error, JudgeError) and not isinstance(error, JudgeDenied | JudgeRefused)
        return _say(str(error), 1 if failed else 2)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader has gone (`corl ... | head`): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        # What typer raises for wrong usage has no public base class across its versions, but this public method.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        message, code = format_message(), getattr(error, "exit_code", 2)
        if "\n" in message.strip():  # a group of commands without one of them: its help
            typer.echo(message, err=True)
            return code
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else f"corl {arguments[0]}"
        return _say(f"{message.rstrip('.')} (see `{command} --help`)", code)


def _dispatch(arguments: list[str], entries: Mapping[str, EntryPoint]) -> int:
    if not arguments:
        typer.echo(_help(entries), err=True, nl=False)
        return 2
    name, *rest = arguments
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        typer.echo(_help(entries), nl=False)
        return 0
    if name == "--version":
        typer.echo(f"corl {corl.__version__}")
        return 0
    if name.startswith("-"):
        raise UsageFault(f"no option {name!r} before the command (see `corl --help`)")
    if name not in entries:
        raise UsageFault(f"no command {name!r}; {nearest(name, entries)}")
    app = load(entries[name])
    try:
        result = app(rest, prog_name=f"corl {name}", standalone_mode=False)
    except ModuleNotFoundError as error:
        raise _missing(entries[name], error) from error
    return result if isinstance(result, int) else 0


def _missing(entry: EntryPoint, error: ModuleNotFoundError) -> Exception:
    """Which extra to install; the error itself where no extra would help."""
    extra = EXTRAS.get(entry.module.partition(".")[0])
    module = error.name or ""
    if extra is None or not module or module.partition(".")[0] in ("corl", *EXTRAS):
        return error
    return UsageFault(f"`corl {entry.name}` needs the package {module!r}: pip install 'corl[{extra}]'")


def _help(entries: Mapping[str, EntryPoint]) -> str:
    width = max(map(len, entries), default=0)
    commands = [f"  {name:<{width}}  {_summary(entry)}" for name, entry in entries.items()]
    return HELP.format(commands="\n".join(commands))


def _summary(entry: EntryPoint) -> str:
    try:
        target = entry.load()
    except ModuleNotFoundError as error:
        return f"(not available) {_missing(entry, error)}"
    text = (target.info.help or "") if isinstance(target, typer.Typer) else inspect.getdoc(target) or ""
    return text.strip().partition("\n")[0]


def _say(message: str, code: int) -> int:
    typer.echo(f"corl: {message}", err=True)
    return code
