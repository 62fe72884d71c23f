"""Output whose reader may go away: a terminal that is closed, a pipe whose other end has ended."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

__all__ = ["tolerant_output"]


class Tolerant:
    """A text stream that is written to as long as somebody can read it, and no longer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """What is still buffered goes nowhere too, lest the interpreter fail on it when it ends."""
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def tolerant_output() -> Iterator[None]:
    """Within it standard output and standard error raise no OSError."""
    with (
        contextlib.redirect_stdout(cast("TextIO", Tolerant(sys.stdout))),
        contextlib.redirect_stderr(cast("TextIO", Tolerant(sys.stderr))),
    ):
        yield
