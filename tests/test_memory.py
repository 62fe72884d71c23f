"""What a process says of the most memory that it held."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
from corl.memory import host_peak_bytes
before = host_peak_bytes()
block = bytearray(b"x") * (64 << 20)
del block
print(before, host_peak_bytes())
"""


def test_the_peak_is_this_processs_own_and_stays_when_memory_is_given_back() -> None:
    held = bytearray(b"x") * (128 << 20)  # of the parent, which the child does not inherit
    ran = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    before, after = map(int, ran.stdout.split())
    assert before < len(held)
    assert after - before > 60 << 20
