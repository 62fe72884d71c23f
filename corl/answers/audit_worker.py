"""The child of :mod:`corl.answers.audit`: asks math-verify, one pair a line, until its input ends or it is killed.

It sets no alarm and starts no thread: math-verify runs with its own timeouts off, and the parent ends this process
when a pair takes too long. Only booleans leave it, never a parsed expression (printing one can hang).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

MEMORY = 2 << 30


def main() -> None:
    """Read ``{"a": .., "b": ..}`` lines; write ``[verify(a, b), verify(b, a)]`` lines, null where nothing parsed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever the libraries print is no result
    os.dup2(1, 2)
    import math_verify

    print("ready", file=results, flush=True)
    for line in sys.stdin:
        pair = json.loads(line)
        try:
            verdict = compare(math_verify, pair["a"], pair["b"])
        except (Exception, RecursionError, MemoryError):
            verdict = None
        print(json.dumps(verdict), file=results, flush=True)


def compare(math_verify: Any, a: str, b: str) -> list[bool] | None:
    """math-verify's verdict on two answers with either as the reference; None when one of them does not parse."""
    left, right = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (a, b))
    if not left or not right:
        return None
    return [bool(math_verify.verify(*pair, timeout_seconds=None)) for pair in ((left, right), (right, left))]


if __name__ == "__main__":
    main()
