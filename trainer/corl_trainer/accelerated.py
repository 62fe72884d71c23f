"""`accelerate launch` for a trainer, with the trainer's exit code and with SIGTERM passed on to it.

    python -m corl_trainer.accelerated [options of accelerate launch] -- cohort.yaml --member a --run r1 ...

Without `--num_processes` there is one process a visible GPU. `accelerate launch` on its own ends with 1 however the
trainer ended, and where it starts a single process a SIGTERM ends the launcher but not the trainer. That is too little
for whatever decides by the exit code whether a trainer is started again, and stops it by SIGTERM (a Kubernetes Job).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import psutil

from corl_trainer.stops import ExitCode

__all__ = ["launch"]

LONGEST_STOP_S = "3600"
"""Torch's launcher kills ranks 30 s after a SIGTERM, in the middle of a long step. Whoever sends the SIGTERM has a
deadline of its own."""


def launch(arguments: Sequence[str], *, module: str = "corl_trainer") -> int:
    """Start `module` by `accelerate launch`; `arguments` are its options, `--`, and the module's. The exit code.

    Of several ranks the code is the first failed one's, and 3 (REQUESTED) after a SIGTERM; 128 + N for a rank that
    signal N ended. Raises SystemExit for options that accelerate does not know.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    args = launch_command_parser().parse_args([*given[:at], "--module", module, "--", *given[at + 1 :]])
    args.quiet = False  # with it accelerate hides the exit code
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", LONGEST_STOP_S)
    with _passing_signals_on():
        try:
            launch_command(args)
        except subprocess.CalledProcessError as error:
            return _code(error.returncode)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return _code(failure.exitcode)
        except SignalException:
            return ExitCode.REQUESTED
    return ExitCode.DONE


@contextlib.contextmanager
def _passing_signals_on() -> Iterator[None]:
    """While accelerate waits for a single process. Torch's launcher of several sets handlers of its own."""

    def pass_on(number: int, _frame: object) -> None:
        children = psutil.Process().children()
        if not children:  # none was started yet
            raise SystemExit(int(ExitCode.REQUESTED))
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    # A Ctrl-C in a terminal reaches the trainer by itself, and a second one would mean to it: at once.
    handlers = {signal.SIGTERM: pass_on, signal.SIGINT: lambda *_: None}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
