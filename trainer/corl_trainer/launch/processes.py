"""One process of a run: started in a group of its own, logged to a file, ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corl.guard import Guard, signal_with_parent

__all__ = ["Child", "Restarts", "last_lines"]


class Child:
    """A process and its group. `start` may be called again once it has ended."""

    def __init__(self, log: Path, guard: Guard) -> None:
        self.log = log
        self.began = 0.0
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, argv: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Raises OSError if it cannot be started at all."""
        with self.log.open("ab") as log:
            # A group of its own, so that Ctrl-C in a terminal reaches the launcher alone, which passes it on in order.
            self._process = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=signal_with_parent(),
            )
        self._guard.add(self._process.pid)
        self.began = time.monotonic()

    def ended(self) -> int | None:
        """The exit code once it has ended (negative: the signal that ended it); what it left of its group is ended."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._kill_group(self._process.pid)
        self._guard.remove(self._process.pid)
        self._process = None
        return code

    def ask_to_end(self) -> None:
        """SIGTERM, to the process itself: what it started is its own to end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, to the whole group."""
        if self._process is not None:
            self._kill_group(self._process.pid)

    @staticmethod
    def _kill_group(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


@dataclass
class Restarts:
    """How often a process is started again, and how soon: `limit` times, later each time.

    A process that ran for `healthy_s` is forgiven what came before.
    """

    limit: int
    first_s: float = 1.0
    longest_s: float = 30.0
    healthy_s: float = 600.0
    _recent: int = field(default=0, init=False)

    @property
    def count(self) -> int:
        """Restarts that count against the limit."""
        return self._recent

    def pause(self, ran_s: float) -> float | None:
        """Seconds until the next start of a process that has ended after `ran_s`; None: no more."""
        if ran_s >= self.healthy_s:
            self._recent = 0
        if self._recent >= self.limit:
            return None
        self._recent += 1
        return float(min(self.longest_s, self.first_s * 2 ** (self._recent - 1)))


def last_lines(log: Path, count: int = 12, at_most: int = 16_384) -> list[str]:
    """The end of a log, without blank lines."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - at_most))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
