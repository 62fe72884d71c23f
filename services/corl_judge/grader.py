"""A grader process: reads requests on stdin, writes answers on stdout, ends with its stdin.

Frames are 4 bytes of little-endian length and that much msgpack; nothing is ever unpickled. Run by `grading.Grading`
as `python -m corl_judge.grader`. It is a process of its own so that whatever a completion holds can at worst stall or
kill this process, which has a deadline and is replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, BinaryIO

import msgpack

from corl_judge.verdicts import Asked, collect, judge

__all__ = ["main", "run"]

MAX_MEMORY_BYTES = 4 << 30


def run(request: list[Any]) -> list[Any]:
    """One row a call: `("ok", result)` or `("error", text)`."""
    rows: list[Any] = []
    for name, arguments in request:
        try:
            if name == "collect":
                rows.append(("ok", collect(*arguments)))
            else:
                verdict = judge(Asked(*arguments))
                rows.append(("ok", (verdict.answers, verdict.rewards, verdict.vote.model_dump())))
        except Exception as error:
            rows.append(("error", f"{type(error).__name__}: {error}"))
    return rows


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not break the frames
    while (request := _read(source)) is not None:
        packed = msgpack.packb(run(request))
        sink.write(len(packed).to_bytes(4, "little") + packed)
        sink.flush()


def _read(source: BinaryIO) -> list[Any] | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    body = source.read(int.from_bytes(head, "little"))
    return None if len(body) < int.from_bytes(head, "little") else msgpack.unpackb(body)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


if __name__ == "__main__":
    main()
