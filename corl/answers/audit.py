"""math-verify beside our keys: a check of ours on a sample of answers, offline, and no part of any vote.

math-verify compares pairs, takes its first argument for the reference, and is neither symmetric nor transitive; some
of what it says of a pair is therefore wrong either way, and a disagreement is something to look at. It can also hang
in one big-integer operation, which no signal and no thread can stop: it runs in a child process that is killed at the
deadline of a pair and replaced (`corl.answers.audit_worker`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from types import TracebackType
from typing import Final, Literal, Self

from corl.answers.mathkey import math_key
from corl.errors import CorlError

__all__ = ["Audit", "AuditError", "Disagreement", "Referee", "audit", "sample_pairs"]

START_S: Final = 120.0
Verdict = Literal["same", "different", "asymmetric", "unparsed", "stopped"]


class AuditError(CorlError):
    """The audit cannot run: math-verify is missing or does not start."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two answers on which the two differ: whether our keys are equal, and what math-verify says."""

    a: str
    b: str
    ours: bool
    theirs: Verdict


@dataclass(slots=True)
class Audit:
    """Counts over the pairs compared. `agreed` and `disagreements` are of the pairs that math-verify decided."""

    pairs: int = 0
    agreed: int = 0
    asymmetric: int = 0
    unparsed: int = 0
    stopped: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)


class Referee:
    """math-verify in a child process; a context manager.

    Raises:
        AuditError: on entry, math-verify is not installed or its process does not start.
    """

    def __init__(self, deadline_s: float = 5.0, command: Sequence[str] | None = None) -> None:
        self.deadline_s = deadline_s
        self._command = list(command or (sys.executable, "-m", "corl.answers.audit_worker"))
        self._own = command is None
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        if self._own and importlib.util.find_spec("math_verify") is None:
            raise AuditError("math-verify is not installed: pip install 'corl[audit]'")
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        self._unread = b""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self._line(START_S) != b"ready":
            self._stop()
            raise AuditError(f"the process of math-verify did not start: {' '.join(self._command)}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _line(self, deadline_s: float) -> bytes | None:
        """The next line of the child; None when it ends, or does not answer in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        end = time.monotonic() + deadline_s
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(pipe, 65_536)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def compare(self, a: str, b: str) -> Verdict:
        """What math-verify says of two answers, within the deadline; `stopped` when its process had to be replaced."""
        assert self._process is not None, "use as a context manager"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"a": a, "b": b}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(self.deadline_s)
        except BrokenPipeError:
            line = None
        if line is None:
            self._stop()
            self._start()
            return "stopped"
        verdict = json.loads(line)
        if verdict is None:
            return "unparsed"
        if verdict[0] != verdict[1]:
            return "asymmetric"
        return "same" if verdict[0] else "different"


def sample_pairs(groups: Iterable[Sequence[str]], per_group: int = 6, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of different spellings within each group of answers to one problem, at most `per_group` of each group."""
    chance = random.Random(seed)
    for group in groups:
        pairs = list(combinations(list(dict.fromkeys(group))[:64], 2))
        yield from chance.sample(pairs, per_group) if len(pairs) > per_group else pairs


def audit(pairs: Iterable[tuple[str, str]], referee: Referee) -> Audit:
    """Compare each pair by our keys and by math-verify."""
    found = Audit()
    for a, b in pairs:
        found.pairs += 1
        left = math_key(a)
        ours = left is not None and left == math_key(b)
        theirs = referee.compare(a, b)
        if theirs == "stopped":
            found.stopped += 1
        elif theirs == "unparsed":
            found.unparsed += 1
        elif theirs == "asymmetric":
            found.asymmetric += 1
        elif (theirs == "same") == ours:
            found.agreed += 1
        else:
            found.disagreements.append(Disagreement(a, b, ours, theirs))
    return found
