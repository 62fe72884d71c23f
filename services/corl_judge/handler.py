"""What a worker does with a work item: generate, extract, file, pack."""

from __future__ import annotations

import asyncio
import math
import time

from corl_judge.engines.base import EngineError, GenerateRequest, Sample
from corl_judge.grading import Grading
from corl_judge.items import Rollout, SampledItem, WorkItem
from corl_judge.jobs import Lease, SideWrite
from corl_judge.logs import bound
from corl_judge.metrics import Metrics
from corl_judge.replica import NotServed, Replica
from corl_judge.votebook import Filed, VoteBook
from corl_judge.worker import Done, InfrastructureFault

__all__ = ["ItemHandler"]


class ItemHandler:
    """A `worker.Handler` over one replica's engine."""

    def __init__(
        self, replica: Replica, grading: Grading, book: VoteBook, metrics: Metrics, *, deadline_s: float
    ) -> None:
        self._replica = replica
        self._grading = grading
        self._book = book
        self._metrics = metrics
        self._deadline_s = deadline_s

    async def __call__(self, queue: str, lease: Lease) -> Done:
        item = WorkItem.from_bytes(lease.payload)
        with bound(request_id=item.request_id, run=item.run, step=item.step):
            try:
                done = await self._do(queue, item)
            except Exception as error:
                self._metrics.items.labels(
                    queue, "returned" if isinstance(error, InfrastructureFault) else "failed"
                ).inc()
                raise
            self._metrics.items.labels(queue, "done").inc()
            return done

    async def _do(self, queue: str, item: WorkItem) -> Done:
        request = GenerateRequest(item.prompt, item.prompt_token_ids, item.n, item.sampling, item.seed)
        await self._replica.catch_up(item.wanted)
        started = time.time()
        try:
            with self._replica.serving(item.wanted) as tag:
                samples = await asyncio.wait_for(self._replica.engine.generate(request), self._deadline_s)
        except NotServed as error:
            raise InfrastructureFault(str(error)) from error
        except TimeoutError as error:
            raise TimeoutError(f"sampling took longer than {self._deadline_s} s") from error
        self._metrics.queue_wait.labels(queue).observe(max(0.0, started - item.submitted_at))
        self._metrics.execution.labels(queue).observe(time.time() - started)
        facts = self._replica.facts
        _check(samples, item.n, tokens=facts is None or facts.token_ids)
        self._metrics.completions.labels(queue).inc(len(samples))
        self._metrics.tokens.labels(queue).inc(sum(len(sample.token_ids) for sample in samples))

        answers, histogram = await self._grading.collect([s.text for s in samples], item.task, item.options)
        fresh = item.purpose == "vote"
        rollouts = [] if fresh else [Rollout(s, answer) for s, answer in zip(samples, answers, strict=True)]
        also: tuple[SideWrite, ...] = ()
        if item.vote is not None:
            key = item.vote.under(tag.digest)
            filed = Filed(histogram, tag, "fresh" if fresh else "rollout")
            also = (SideWrite(self._book.redis_key(key), filed.to_bytes(), self._book.ttl_s),)
        return Done(SampledItem(tag, histogram, rollouts).to_bytes(), also)


def _check(samples: list[Sample], n: int, *, tokens: bool) -> None:
    """An engine's answer is believed only if it is whole: a NaN or a missing row would train on noise."""
    if len(samples) != n:
        raise EngineError(f"the engine gave {len(samples)} completions where {n} were asked for")
    if not tokens:
        return
    for index, sample in enumerate(samples):
        if not sample.token_ids or len(sample.logprobs) != len(sample.token_ids):
            raise EngineError(
                f"completion {index}: {len(sample.token_ids)} tokens with {len(sample.logprobs)} log-probabilities"
            )
        if not all(map(math.isfinite, sample.logprobs)):
            raise EngineError(f"completion {index}: a log-probability is not finite")
