"""Continuous batching over a transformers model: requests join and leave a running batch between two tokens.

A prompt is prefilled once and its keys and values are copied to its samples. One iteration prefills at most
`PREFILL_TOKENS` and then decodes one token of every row, so a long prompt and a long completion hold up the others by
one iteration and not by their whole length. A row is admitted only if the batch will still be within its budget of
keys and values when every row has run to its `max_tokens`: nothing is ever evicted.

One thread owns a Batcher; only `Job.cancelled` is set from outside.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from corl.wire import Sampling
from corl_judge.engines.base import EngineError
from corl_judge.engines.kvcache import KVCache, Part
from corl_judge.engines.sampling import sample_tokens, uniforms

__all__ = ["Batcher", "Job", "Row"]

PREFILL_TOKENS = 8192  # of one iteration, padding included; a longer prompt goes alone


@dataclass(eq=False, slots=True)
class Row:
    """One sample in the making."""

    job: Job
    index: int
    uniforms: np.ndarray[Any, np.dtype[np.float64]]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None

    @property
    def length(self) -> int:
        """Columns of keys and values that the row fills: the newest token has none yet."""
        return len(self.job.prompt) + max(0, len(self.token_ids) - 1)

    @property
    def left(self) -> int:
        """Columns that the row may still fill."""
        return self.job.sampling.max_tokens - len(self.token_ids)


@dataclass(eq=False, slots=True)
class Job:
    """n samples of a prompt. `done` is called once, with the rows in order or with what went wrong."""

    prompt: Sequence[int]
    n: int
    sampling: Sampling
    seed: int
    done: Callable[[list[Row] | BaseException], None]
    cancelled: bool = False
    admitted: int = 0
    finished: list[Row] = field(default_factory=list)
    over: bool = False

    def end(self, outcome: list[Row] | BaseException) -> None:
        if not self.over:
            self.over = True
            self.done(outcome)


@dataclass(slots=True)
class Room:
    """What a batch takes: rows, columns filled now, and columns that the longest to go may still fill."""

    rows: int
    columns: int
    left: int

    def beside(self, job: Job) -> Room:
        """The same rows, padded for the job's."""
        return Room(self.rows, max(self.columns, len(job.prompt)), max(self.left, job.sampling.max_tokens - 1))

    def rows_left(self, max_rows: int, max_tokens: int) -> int:
        """How many more rows fit until all have run to their ends. An empty batch takes one row always."""
        by_tokens = max_tokens // (self.columns + self.left) - self.rows
        return max(min(by_tokens, max_rows - self.rows), 0 if self.rows else 1)


class Batcher:
    """`max_rows` samples at a time, and `max_tokens` columns of keys and values over all rows, padding included."""

    def __init__(self, model: Any, *, eos: Sequence[int], max_rows: int, max_tokens: int) -> None:
        self.model = model
        self.device = model.device
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self._eos = frozenset(eos)
        self._waiting: deque[Job] = deque()
        self._rows: list[Row] = []
        self._cache: KVCache | None = None
        self._columns = 0
        self._accepts = inspect.signature(model.forward).parameters

    def add(self, job: Job) -> None:
        """Jobs are admitted in order; one that wants a single token goes first, since it takes no room."""
        if _is_instant(job):
            self._waiting.appendleft(job)
        else:
            self._waiting.append(job)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._rows)

    @property
    def held(self) -> int:
        """Columns of keys and values of all rows, padding included."""
        return len(self._rows) * self._columns

    def fail_all(self, error: BaseException) -> None:
        for job in [*self._waiting, *(row.job for row in self._rows)]:
            job.end(error)
        self._waiting.clear()
        self._clear()

    @torch.inference_mode()
    def step(self) -> None:
        """One iteration. An error ends the requests that were in it, and the others go on; an error of the device
        itself is raised."""
        admitted: list[tuple[Job, list[Row]]] = []
        try:
            self._drop_cancelled()
            admitted = self._admit()
            self._prefill(admitted)
        except Exception as error:
            self._fail([job for job, _ in admitted] + self._lose_batch(only_if_broken=True), error)
        try:
            self._decode()
        except Exception as error:
            self._fail(self._lose_batch(), error)

    def _lose_batch(self, *, only_if_broken: bool = False) -> list[Job]:
        """The jobs of the running batch, which is given up: what failed on its keys and values left them half done."""
        if only_if_broken and self._cache is not None:
            return []
        jobs = [row.job for row in self._rows]
        self._clear()
        return jobs

    # Admission -------------------------------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        self._waiting = deque(job for job in self._waiting if not job.cancelled)
        if any(row.job.cancelled for row in self._rows):
            self._keep([i for i, row in enumerate(self._rows) if not row.job.cancelled])

    def _admit(self) -> list[tuple[Job, list[Row]]]:
        """Rows of waiting jobs that fit, in order, of prompts that one prefill can take."""
        admitted: list[tuple[Job, list[Row]]] = []
        live = [row for row in self._rows if row.finish_reason is None]
        room = Room(len(live), max((r.length for r in live), default=0), max((r.left for r in live), default=0))
        longest = 0
        while self._waiting:
            job = self._waiting[0]
            longest = max(longest, len(job.prompt))
            if admitted and longest * (len(admitted) + 1) > PREFILL_TOKENS:
                break
            count = job.n - job.admitted
            if not _is_instant(job):
                room = room.beside(job)
                count = min(count, room.rows_left(self.max_rows, self.max_tokens))
                room.rows += count
            if count == 0:
                break
            admitted.append((job, [self._row(job, job.admitted + i) for i in range(count)]))
            job.admitted += count
            if job.admitted < job.n:
                break
            self._waiting.popleft()
        return admitted

    def _row(self, job: Job, index: int) -> Row:
        return Row(job, index, uniforms(job.seed, index, job.sampling.max_tokens))

    # Model -----------------------------------------------------------------------------------------------------------

    def _prefill(self, admitted: list[tuple[Job, list[Row]]]) -> None:
        """Run the prompts, sample every new row's first token, and let the rows join the batch."""
        if not admitted:
            return
        columns = max(len(job.prompt) for job, _ in admitted)
        ids = torch.zeros((len(admitted), columns), dtype=torch.long)
        lengths = torch.tensor([len(job.prompt) for job, _ in admitted])
        for i, (job, _) in enumerate(admitted):
            ids[i, columns - len(job.prompt) :] = torch.tensor(list(job.prompt))
        cache = KVCache()
        logits = self._forward(ids, lengths, columns, cache)
        rows = [row for _, new in admitted for row in new]
        prompt_of = torch.tensor([i for i, (_, new) in enumerate(admitted) for _ in new], device=self.device)
        self._sample(logits, prompt_of, rows)
        going = [i for i, row in enumerate(rows) if row.finish_reason is None]
        self._join(
            [rows[i] for i in going], cache, prompt_of[torch.tensor(going, dtype=torch.long, device=self.device)]
        )

    def _decode(self) -> None:
        """One token of every row; rows that are done leave once they are an eighth of the batch."""
        live = [i for i, row in enumerate(self._rows) if row.finish_reason is None]
        if not live:
            self._clear()
            return
        if len(live) <= len(self._rows) * 7 // 8:
            self._keep(live)
        rows, cache = self._rows, self._cache
        assert cache is not None
        ids = torch.tensor([[row.token_ids[-1]] for row in rows])
        lengths = torch.tensor([row.length + 1 for row in rows])
        logits = self._forward(ids, lengths, self._columns + 1, cache)
        self._columns += 1
        self._sample(logits, torch.arange(len(rows), device=self.device), rows)

    def _forward(self, ids: torch.Tensor, lengths: torch.Tensor, columns: int, cache: KVCache) -> torch.Tensor:
        """Logits [rows, vocab] after the last of `ids` [rows, new]; rows hold `lengths` of `columns` then."""
        new = ids.shape[1]
        first = columns - lengths[:, None]  # the column of a row's first token
        arguments: dict[str, Any] = {
            "input_ids": ids.to(self.device),
            "attention_mask": (torch.arange(columns)[None] >= first).long().to(self.device),
            "past_key_values": cache,
            "use_cache": True,
        }
        if "position_ids" in self._accepts:
            arguments["position_ids"] = (
                (torch.arange(columns - new, columns)[None] - first).clamp(min=0).to(self.device)
            )
        if "logits_to_keep" in self._accepts:
            arguments["logits_to_keep"] = 1
        logits: torch.Tensor = self.model(**arguments).logits[:, -1]
        return logits

    def _sample(self, logits: torch.Tensor, source: torch.Tensor, rows: Sequence[Row]) -> None:
        """Append a token to every unfinished row from the logits row that `source` names for it."""
        where = torch.device("cpu") if self.device.type == "mps" else self.device  # mps has no double precision
        settings = torch.tensor(
            [
                (row.uniforms[min(len(row.token_ids), len(row.uniforms) - 1)], s.temperature, s.top_p, s.top_k)
                if s.temperature > 0
                else (0.0, 0.0, 1.0, 0)
                for row in rows
                for s in (row.job.sampling,)
            ],
            dtype=torch.float64,
        ).to(where)
        u, temperature, top_p, top_k = settings.unbind(1)
        ids, logprobs = sample_tokens(logits.to(where)[source.to(where)], u, temperature, top_p, top_k)
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if row.finish_reason is not None:
                continue
            if logprob != logprob:
                row.finish_reason = "stop"
                row.job.end(EngineError("the model gives logits that are not finite: its weights have diverged"))
                row.job.cancelled = True
                continue
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if token in self._eos:
                row.finish_reason = "stop"
            elif len(row.token_ids) == row.job.sampling.max_tokens:
                row.finish_reason = "length"
            if row.finish_reason is not None:
                self._finish(row)

    def _finish(self, row: Row) -> None:
        job = row.job
        job.finished.append(row)
        if len(job.finished) == job.n:
            job.end(sorted(job.finished, key=lambda r: r.index))

    # The batch's rows ------------------------------------------------------------------------------------------------

    def _join(self, new: list[Row], cache: KVCache, sources: torch.Tensor) -> None:
        if not new:
            return
        parts, rows = [], []
        live = [i for i, row in enumerate(self._rows) if row.finish_reason is None]
        if live and self._cache is not None:
            parts.append(Part(self._cache, torch.tensor(live, device=self.device)))
            rows += [self._rows[i] for i in live]
        parts.append(Part(cache, sources))
        self._rebuild(rows + new, parts)

    def _keep(self, live: list[int]) -> None:
        if not live:
            self._clear()
            return
        assert self._cache is not None
        self._rebuild([self._rows[i] for i in live], [Part(self._cache, torch.tensor(live, device=self.device))])

    def _rebuild(self, rows: list[Row], parts: Sequence[Part]) -> None:
        self._rows, self._cache = rows, None  # joining uses up the old keys and values, also when it fails
        self._columns = max(row.length for row in rows)
        self._cache = Part.join(parts, self._columns, room=max(row.left for row in rows))

    def _clear(self) -> None:
        self._rows, self._cache, self._columns = [], None, 0

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        for job in jobs:
            job.cancelled = True  # its rows elsewhere leave at the next iteration
            job.end(_failure(error))
        # After an error of the device itself every later call fails too.
        if isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError):
            raise error


def _is_instant(job: Job) -> bool:
    """One token a sample: done at its prefill, so it never takes room in the batch."""
    return job.sampling.max_tokens == 1


def _failure(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "alloc" in text:
        return EngineError(
            f"out of memory: {text}; lower engine_options.kv_cache_memory_bytes or engine_options.max_num_seqs"
        )
    return EngineError(f"{type(error).__name__}: {text}")
