"""The most memory that this process has held, for those who plan a host."""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["host_peak_bytes"]

STATUS = Path("/proc/self/status")
HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def host_peak_bytes() -> int:
    """The peak of the resident set, in bytes.

    Linux's own mark, where there is one: what getrusage gives starts at what the parent held when it forked.
    """
    try:
        found = HIGH_WATER.search(STATUS.read_text())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
