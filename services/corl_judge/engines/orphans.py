"""Ends an engine's processes when the process that started them is gone.

vLLM's engine core does not notice that its client was killed: it would live on for ever, with the memory of a GPU.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

__all__ = ["OWNER", "end_with_owner"]

OWNER = "CORL_ENGINE_OWNER"


def end_with_owner() -> None:
    """In a worker process: wait for the end of the process that the environment variable OWNER names, and kill the
    engine core above this process, if that is another, and this one. Linux only, as vLLM is."""
    owner = int(os.environ.get(OWNER, "0"))
    if owner in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
        return
    parent = os.getppid()
    doomed = [os.pidfd_open(pid) for pid in ([] if parent in (1, owner) else [parent]) + [os.getpid()]]
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        _kill(doomed)
        return
    threading.Thread(target=_watch, args=(watched, doomed), name="owner", daemon=True).start()


def _watch(owner: int, doomed: list[int]) -> None:
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.poll()
    _kill(doomed)


def _kill(doomed: list[int]) -> None:
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
