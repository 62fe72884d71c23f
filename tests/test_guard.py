"""What the guard minds ends with its owner, whatever ends the owner; what it was told to forget does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

DEADLINE_S = 60.0

OWNER = """
import os, subprocess, sys, time
from corl.guard import Guard
guard = Guard(grace_s=0.3)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
parent = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print(child.pid, flush=True); time.sleep(600)"
)
def start(code):
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
minded, stubborn, forgotten = start(parent), start(deaf), start(parent)
grandchild = int(minded.stdout.readline())
assert stubborn.stdout.readline() == "deaf\\n"
forgotten.stdout.readline()
for process in (minded, stubborn, forgotten):
    guard.add(process.pid)
guard.remove(forgotten.pid)
fork = os.fork() if sys.argv[1] == "fork" else None
if fork == 0:
    time.sleep(600)  # holds the guard's pipe open after the owner has gone
print(f"{fork or 0} {minded.pid} {grandchild} {stubborn.pid} {forgotten.pid}\\n", end="", flush=True)
if sys.argv[1] == "raise":
    raise SystemExit(3)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("end", ["kill", "terminate", "raise", "fork"])
def test_groups_end_with_their_owner(end: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, end], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    fork, minded, grandchild, stubborn, forgotten = map(int, owner.stdout.readline().split())
    try:
        if end in ("kill", "fork"):
            owner.kill()
        elif end == "terminate":
            owner.terminate()
        owner.wait(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while any(map(alive, (minded, grandchild, stubborn))):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert alive(forgotten)
    finally:
        os.killpg(forgotten, signal.SIGKILL)
        if fork:
            os.kill(fork, signal.SIGKILL)
        owner.stdout.close()
