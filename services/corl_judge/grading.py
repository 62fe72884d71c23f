"""Judging completions without stalling the event loop: small batches inline, large ones in grader processes.

A grader that dies or overruns its deadline is killed and replaced, and its chunk is tried again one call at a time, so
that a hostile completion fails its own item and no other. Failing is an error, never a reward of zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from corl.wire import Options, Task, Vote
from corl_judge.grader import run
from corl_judge.verdicts import Asked, Verdict, collect

__all__ = ["Grading", "GradingFailed"]

log = logging.getLogger(__name__)

INLINE_COMPLETIONS = 32
INLINE_CHARS = 65_536
CHUNK_COMPLETIONS = 256
CHUNK_CHARS = 1_000_000

Call = tuple[str, tuple[Any, ...]]


class GradingFailed(Exception):
    """These completions could not be judged: the grader died, overran its deadline, or raised."""


class GraderDied(GradingFailed):
    """The process ended in the middle of its work."""


class Grading:
    """`processes` graders, started on `start`; `deadline_s` for one chunk."""

    def __init__(self, processes: int, deadline_s: float) -> None:
        self._count = processes
        self._deadline_s = deadline_s
        self._free: asyncio.Queue[_Grader] = asyncio.Queue()
        self._graders: list[_Grader] = []

    async def start(self) -> None:
        """Start the processes and let each judge a known pair. Raises GradingFailed if the verdict is wrong."""
        self._graders = [_Grader() for _ in range(self._count)]
        for grader in self._graders:
            await self._self_test(grader)
            self._free.put_nowait(grader)

    async def close(self) -> None:
        await asyncio.gather(*(grader.kill() for grader in self._graders))

    @property
    def pids(self) -> list[int]:
        """Processes that run now."""
        return [grader.pid for grader in self._graders if grader.pid is not None]

    @property
    def busy(self) -> int:
        """Graders that judge now."""
        return self._count - self._free.qsize()

    async def collect(
        self, completions: Sequence[str], task: Task, options: Options | None
    ) -> tuple[list[str | None], bytes]:
        """Answers and packed histogram of one problem's completions. Raises GradingFailed."""
        [row] = await self._run([("collect", (list(completions), task, options))], [completions])
        if isinstance(row, GradingFailed):
            raise row
        answers, histogram = row
        return answers, histogram

    async def judge(self, asked: Sequence[Asked]) -> list[Verdict | GradingFailed]:
        """A verdict for each, or why there is none. Many completions of one problem are judged in parts."""
        parts = [(index, part) for index, one in enumerate(asked) for part in _parts(one)]
        rows = await self._run([("judge", _arguments(part)) for _, part in parts], [p.completions for _, p in parts])
        verdicts: list[Verdict | GradingFailed | None] = [None] * len(asked)
        for (index, _), row in zip(parts, rows, strict=True):
            verdicts[index] = _joined(verdicts[index], row if isinstance(row, GradingFailed) else _verdict(row))
        return [verdict for verdict in verdicts if verdict is not None]

    async def _run(self, calls: list[Call], texts: Sequence[Sequence[str]]) -> list[Any]:
        chunks = list(_chunks(calls, texts))
        if len(chunks) == 1 and _small(texts):
            return [_outcome(row) for row in run([list(call) for call in calls])]
        results: list[list[Any]] = [[] for _ in chunks]
        todo = iter(enumerate(chunks))

        async def work() -> None:
            for index, chunk in todo:
                results[index] = await self._chunk(chunk)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._count, len(chunks))):
                group.create_task(work())
        return [row for rows in results for row in rows]

    async def _chunk(self, calls: list[Call]) -> list[Any]:
        grader = await self._free.get()
        try:
            return [_outcome(row) for row in await grader.ask(calls, self._deadline_s)]
        except GradingFailed as error:
            if len(calls) == 1 and not isinstance(error, GraderDied):
                return [error]
            # One by one, so that each call has the fault that is its own; a death may have been none of theirs.
            log.warning("%d problems are judged again: %s", len(calls), error)
            rows: list[Any] = []
            for call in calls:
                try:
                    rows += [_outcome(row) for row in await grader.ask([call], self._deadline_s)]
                except GradingFailed as again:
                    rows.append(again)
            return rows
        finally:
            self._free.put_nowait(grader)

    async def _self_test(self, grader: _Grader) -> None:
        """The paths that a request takes, on a pair with a known verdict."""
        texts = ["so \\boxed{\\frac{1}{2}}", "the answer is \\boxed{0.5}", "\\boxed{3}", "nothing"]
        known = ("judge", (texts, "math", None, collect(texts[:2], "math", None)[1], 0.0, "abstain", 2))
        [asked] = await grader.ask([known], self._deadline_s)
        [inline] = run([list(known)])
        for outcome in (_outcome(asked), _outcome(inline)):
            if isinstance(outcome, GradingFailed) or list(outcome[1] or ()) != [1.0, 1.0, 0.0, 0.0]:
                raise GradingFailed(f"the self-test of the grader gave {outcome!r}: it would give wrong rewards")


class _Grader:
    """One process; started when asked, and again after it was killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def ask(self, calls: list[Call], deadline_s: float) -> list[Any]:
        try:
            return await asyncio.wait_for(self._exchange(calls), deadline_s)
        except TimeoutError:
            await self.kill()
            raise GradingFailed(f"judging took longer than {deadline_s} s and was ended") from None
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            await self.kill()
            raise GraderDied(f"the grader process died ({type(error).__name__})") from error
        except asyncio.CancelledError:
            await self.kill()  # half an exchange: the next answer would be to the wrong question
            raise

    async def _exchange(self, calls: list[Call]) -> list[Any]:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "corl_judge.grader",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        packed = msgpack.packb(calls)
        process.stdin.write(len(packed).to_bytes(4, "little"))
        process.stdin.write(packed)
        await process.stdin.drain()
        head = await process.stdout.readexactly(4)
        rows: list[Any] = msgpack.unpackb(await process.stdout.readexactly(int.from_bytes(head, "little")))
        if len(rows) != len(calls):
            raise ValueError(f"{len(rows)} answers to {len(calls)} calls")
        return rows

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _arguments(asked: Asked) -> tuple[Any, ...]:
    """Shallow: options and completions are as msgpack takes them."""
    return (
        list(asked.completions),
        asked.task,
        asked.options,
        asked.histogram,
        asked.threshold,
        asked.ties,
        asked.min_parsed,
    )


def _parts(asked: Asked) -> Iterator[Asked]:
    for start in range(0, max(len(asked.completions), 1), CHUNK_COMPLETIONS):
        yield replace(asked, completions=asked.completions[start : start + CHUNK_COMPLETIONS])


def _joined(first: Verdict | GradingFailed | None, second: Verdict | GradingFailed) -> Verdict | GradingFailed:
    if first is None or isinstance(second, GradingFailed):
        return second
    if isinstance(first, GradingFailed):
        return first
    rewards = None if first.rewards is None or second.rewards is None else [*first.rewards, *second.rewards]
    return Verdict([*first.answers, *second.answers], rewards, first.vote)


def _chunks(calls: Sequence[Call], texts: Sequence[Sequence[str]]) -> Iterator[list[Call]]:
    chunk: list[Call] = []
    completions = chars = 0
    for call, group in zip(calls, texts, strict=True):
        size = sum(map(len, group))
        if chunk and (completions + len(group) > CHUNK_COMPLETIONS or chars + size > CHUNK_CHARS):
            yield chunk
            chunk, completions, chars = [], 0, 0
        chunk.append(call)
        completions += len(group)
        chars += size
    if chunk:
        yield chunk


def _small(texts: Sequence[Sequence[str]]) -> bool:
    return sum(map(len, texts)) <= INLINE_COMPLETIONS and sum(len(t) for group in texts for t in group) <= INLINE_CHARS


def _outcome(row: Any) -> Any:
    status, result = row
    return GradingFailed(result) if status == "error" else result


def _verdict(row: Any) -> Verdict:
    answers, rewards, vote = row
    return Verdict(answers, rewards, vote if isinstance(vote, Vote) else Vote.model_validate(vote))
