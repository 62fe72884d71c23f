"""Ends processes when the one that started them is gone, however it went.

A parent that is killed cannot clean up, and Linux's parent-death signal reaches direct children only and fires when
the *thread* that started them ends (prctl(2), PR_SET_PDEATHSIG). So a small process of its own session watches: it is
told which process groups to mind, and ends them once its owner has gone. The signal covers the instant before it is
told, where there is one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["Guard", "signal_with_parent"]

PR_SET_PDEATHSIG = 1
POLL_S = 1.0


class Guard:
    """Minds process groups. Their leaders must be children of this process, started in a new session or group.

    When the owner ends in any way, each group still minded gets SIGTERM and, `grace_s` seconds later, SIGKILL.
    """

    def __init__(self, grace_s: float = 10.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Mind a process group, named by its leader's id."""
        self._tell(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Forget a group that has ended; its number may be another's soon."""
        self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """End the guard; groups still minded are ended with it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a guard that was killed is no reason to fail: the signal remains
            self._process.stdin.write(line)
            self._process.stdin.flush()


def signal_with_parent() -> Callable[[], None] | None:
    """For `Popen(preexec_fn=)`: asks for SIGTERM at the parent's end. None where it cannot be relied on.

    That is off Linux, and in any thread but the main one, whose end would already be the parent's.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork: only the bare call is made after it

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


def _watch(owner: int, grace_s: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    pending = b""
    while True:
        # Asked before the pipe is looked at, so that what a dying owner wrote last is still read. The pipe alone does
        # not tell: a process that the owner forked may hold its other end.
        orphaned = os.getppid() != owner
        if not select.select([0], [], [], 0.0 if orphaned else POLL_S)[0]:
            if orphaned:
                break
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    _signal(groups, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        _signal(groups, 0)
    _signal(groups, signal.SIGKILL)


def _signal(groups: set[int], number: int) -> None:
    """Signals each group and drops those that are no more."""
    for group in sorted(groups):
        try:
            os.killpg(group, number)
        except OSError:
            groups.discard(group)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))
