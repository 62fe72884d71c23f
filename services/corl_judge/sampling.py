"""From problems to samples, through the queue: encode, submit, gather, whoever does the work.

Results are those of the weights that were wanted, or of newer ones that are desired by the time they come; a stored
result of other weights is not taken, the work is asked for again under another key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, cast

from corl.wire import Failure, Prompt, WeightsTag
from corl_judge.engines.base import PromptRejected
from corl_judge.errors import TooBusy
from corl_judge.items import SampledItem, WorkItem
from corl_judge.jobs import Item, JobQueue, QueueFull, ask
from corl_judge.replica import Replica
from corl_judge.votebook import VoteBook
from corl_judge.worker import decode_error

__all__ = ["Asker", "Sampler"]

INLINE_PROMPTS = 8
RETRY_AFTER_S = 2.0


@dataclass(slots=True)
class Asker:
    """Who waits, until when (monotonic seconds), and who is told how many items have ended."""

    id: str
    deadline: float
    on_progress: Callable[[int], None] | None = None

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class Sampler:
    """`rollouts` and `votes` are apart, so that neither starves the other."""

    def __init__(self, member: str, replica: Replica, book: VoteBook, rollouts: JobQueue, votes: JobQueue) -> None:
        self._member = member
        self._replica = replica
        self._book = book
        self._queues = {"rollouts": rollouts, "votes": votes}
        # Tokenizers hold state between calls: one thread for all.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="encode")

    def close(self) -> None:
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def encode(self, prompts: Sequence[Prompt]) -> list[list[int] | PromptRejected]:
        """Token ids, or why not; many prompts off the event loop."""
        if len(prompts) <= INLINE_PROMPTS:
            return [self._encode(prompt) for prompt in prompts]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoder, lambda: [self._encode(prompt) for prompt in prompts])

    def _encode(self, prompt: Prompt) -> list[int] | PromptRejected:
        try:
            return self._replica.engine.encode(prompt)
        except PromptRejected as error:
            return error

    async def sample(
        self, work: Literal["rollouts", "votes"], items: Sequence[WorkItem], asker: Asker
    ) -> list[SampledItem | Failure]:
        """In order. Items without a result at the asker's deadline are a Failure of kind `timeout`.

        Raises TooBusy, with nothing queued, if the queue is full.
        """
        queue = self._queues[work]
        results: dict[int, SampledItem | Failure] = {}
        attempts = dict.fromkeys(range(len(items)), 0)
        todo = list(range(len(items)))
        await self._book.index(item.vote for item in items if item.vote is not None)
        while todo:
            keys = {index: items[index].key(self._member, attempts[index]) for index in todo}
            # Two items of a request may be the same work.
            unique = {key: Item(key, items[index].to_bytes()) for index, key in keys.items()}
            done = len(results)
            try:
                outcomes = await ask(
                    queue,
                    list(unique.values()),
                    asker=asker.id,
                    deadline_s=asker.left_s,
                    on_progress=_shifted(asker.on_progress, done),
                )
            except QueueFull as error:
                raise TooBusy(str(error), retry_after=RETRY_AFTER_S) from error
            desired, served = await self._replica.weights()
            again: list[int] = []
            for index, key in keys.items():
                outcome = outcomes.get(key)
                if outcome is None:
                    results[index] = Failure(kind="timeout", message="not sampled before the deadline; ask again")
                elif outcome.result is None:
                    results[index] = _failure(outcome.error or b"")
                elif (result := _taken(outcome.result, items[index].wanted, desired, served)) is not None:
                    results[index] = result
                else:
                    attempts[index] += 1
                    again.append(index)
            todo = again
        return [results[index] for index in range(len(items))]


def _taken(packed: bytes, wanted: WeightsTag, desired: WeightsTag, served: WeightsTag) -> SampledItem | None:
    """Equal digests are the same weights, so a result under an older tag of what is served now is relabelled."""
    result = SampledItem.from_bytes(packed)
    if result.weights.digest == served.digest:
        return replace(result, weights=served)
    return result if result.weights.digest in (wanted.digest, desired.digest) else None


def _failure(error: bytes) -> Failure:
    kind, message = decode_error(error)
    if kind not in ("timeout", "invalid", "engine", "internal"):
        kind = "internal"
    return Failure(kind=cast('Literal["timeout", "invalid", "engine", "internal"]', kind), message=message)


def _shifted(told: Callable[[int], None] | None, done: int) -> Callable[[int], None] | None:
    return None if told is None else lambda ended: told(done + ended)
