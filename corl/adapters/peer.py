"""Peer rewards for whoever has prompts and completions.

    from corl.adapters import PeerReward

    reward = PeerReward("http://127.0.0.1:8101")
    reward(["What is 2 + 2?"] * 2, ["It is \\boxed{4}.", "It is \\boxed{5}."])     # [1.0, 0.0]

Rows of the same prompt are one problem, and a whole batch is one request. None is a row without a label: the judge's
model did not agree with itself on that problem (paper section 3). All rows of a problem are then None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any, Literal, Self, TypedDict, Unpack

from corl.adapters.batches import Batch, Scored, group
from corl.adapters.texts import Conversational
from corl.client import AsyncJudgeClient, JudgeClient
from corl.errors import CorlError
from corl.wire import Options, Policy, Sampling, ScoredItem, ScoresRequest, ScoresResponse, Task

__all__ = ["Asking", "AsyncPeerReward", "OnUnlabeled", "PeerReward", "RewardFailed", "Scored", "Unlabeled"]

OnUnlabeled = Literal["none", "zero", "error"]


class RewardFailed(CorlError):
    """A judge answered, but could not judge some problems. No reward of the batch was used.

    Attributes:
        failures: problem id to what went wrong.
    """

    def __init__(self, url: str, failures: dict[str, str]) -> None:
        name, message = next(iter(failures.items()))
        super().__init__(f"judge {url}: {len(failures)} problems were not judged; {name!r}: {message}")
        self.failures = failures


class Unlabeled(CorlError):
    """A problem has no label, and `on_unlabeled` is `error`."""


class Asking(TypedDict, total=False):
    """Keyword arguments of a peer reward; see `PeerReward`."""

    api_key: str | None
    policy: Policy | None
    sampling: Sampling | None
    task: Task
    run: str | None
    on_unlabeled: OnUnlabeled
    deadline_s: float


class _Asking:
    """What the two kinds of peer reward share: all but the sending. Picklable: the client is made where it is used."""

    def __init__(
        self,
        judge: str | JudgeClient | AsyncJudgeClient,
        *,
        api_key: str | None = None,
        policy: Policy | None = None,
        sampling: Sampling | None = None,
        task: Task = "math",
        run: str | None = None,
        on_unlabeled: OnUnlabeled = "none",
        deadline_s: float = 600.0,
    ) -> None:
        if on_unlabeled not in ("none", "zero", "error"):
            raise ValueError(f"on_unlabeled is {on_unlabeled!r}: expected none, zero or error")
        if not deadline_s > 0:
            raise ValueError(f"deadline_s is {deadline_s}: expected a number of seconds above 0")
        self._policy = Policy() if policy is None else policy
        self._sampling = sampling
        self._task = task
        self._run = run
        self._on_unlabeled = on_unlabeled
        self._deadline_s = deadline_s
        self._api_key = api_key
        self._address = judge if isinstance(judge, str) else ""
        if isinstance(judge, str):
            if api_key is None and "@" not in judge.partition("://")[2].partition("/")[0]:
                self._api_key = os.environ.get("CORL_API_KEY")
            # A wrong address is refused here, not at the first step.
            with JudgeClient(judge, self._api_key) as client:
                self._url = client.url
        else:
            self._url = judge.url

    def _group(
        self,
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        problem_id: Sequence[Any] | None,
        task: Task | Sequence[Task] | None,
        options: Sequence[Options | None] | None,
    ) -> Batch:
        return group(prompts, completions, problem_id=problem_id, task=task or self._task, options=options)

    def _ask(self, batch: Batch, step: int | None) -> Generator[tuple[ScoresRequest, float], ScoresResponse, Scored]:
        """Yields requests with the seconds that are left; what the judge's own deadline cut off is asked for again."""
        end = time.monotonic() + self._deadline_s
        policy = self._policy.model_copy(update={"wait_s": min(self._policy.wait_s, self._deadline_s)})
        done: dict[str, ScoredItem] = {}
        todo = batch.items
        while todo:
            for request in batch.requests(todo, policy, self._sampling, self._run, step if self._run else None):
                response = yield request, max(end - time.monotonic(), 1e-3)
                done |= {item.id: item for item in response.items}
            failed = [done[item.id] for item in todo if done[item.id].status == "failed"]
            again = {item.id for item in failed if item.failure is not None and item.failure.kind == "timeout"}
            if failed and (len(again) < len(failed) or time.monotonic() >= end):
                messages = {item.problem_id: item.failure.message if item.failure else "failed" for item in failed}
                raise RewardFailed(self._url, messages)
            todo = [item for item in todo if item.id in again]
        return batch.spread(done[item.id] for item in batch.items)

    def _state(self) -> dict[str, Any]:
        if not self._address:
            raise TypeError("a peer reward over a given client cannot be pickled: give the judge's address instead")
        return {**self.__dict__, "_client": None}

    def settle(self, scored: Scored) -> list[float | None]:
        """The rewards, with rows without a label as `on_unlabeled` says. Raises Unlabeled."""
        if self._on_unlabeled == "none" or None not in scored.rewards:
            return scored.rewards
        if self._on_unlabeled == "error":
            row = scored.rewards.index(None)
            status = scored.votes[row].status
            raise Unlabeled(f"row {row} has no label: the vote of judge {self._url} is {status!r}")
        return [0.0 if reward is None else reward for reward in scored.rewards]


class PeerReward(_Asking):
    """Rewards by one judge's votes, for threads. Thread-safe and picklable.

    Args:
        judge: its address, e.g. `http://127.0.0.1:8101`, or `http://corl:KEY@host:8101`; or a client of it.
        api_key: its key; else CORL_API_KEY from the environment, unless the address has one.
        policy: how many samples a fresh vote has, and when a vote is a label.
        sampling: of fresh votes; else the judge's own.
        task: of all problems, where the call gives none: `math`, `choice` or `text`.
        run: name of a cohort's run, whose filed votes are used; needs problem ids. Else votes are sampled by the text.
        on_unlabeled: what a row without a label gets: `none` (None), `zero`, or `error` (raises Unlabeled).
        deadline_s: for one batch, all retries included.
    """

    _client: JudgeClient | None = None

    def __init__(self, judge: str | JudgeClient, **asking: Unpack[Asking]) -> None:
        super().__init__(judge, **asking)
        self._client = None if isinstance(judge, str) else judge

    def __call__(
        self,
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        *,
        problem_id: Sequence[Any] | None = None,
        task: Task | Sequence[Task] | None = None,
        options: Sequence[Options | None] | None = None,
        step: int | None = None,
    ) -> list[float | None]:
        """One reward a row, in [0, 1]. Raises JudgeError, RewardFailed, Unlabeled; ValueError for wrong rows."""
        scored = self.score(prompts, completions, problem_id=problem_id, task=task, options=options, step=step)
        return self.settle(scored)

    def score(
        self,
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        *,
        problem_id: Sequence[Any] | None = None,
        task: Task | Sequence[Task] | None = None,
        options: Sequence[Options | None] | None = None,
        step: int | None = None,
    ) -> Scored:
        """Rewards with the answers that were found and the votes that they were held against."""
        asking = self._ask(self._group(prompts, completions, problem_id, task, options), step)
        try:
            request, left = next(asking)
            while True:
                request, left = asking.send(self._judge().scores(request, deadline_s=left))
        except StopIteration as end:
            scored: Scored = end.value
            return scored

    def close(self) -> None:
        """Close the connections; a client that was given stays open."""
        if self._client is not None and self._address:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._state()

    def _judge(self) -> JudgeClient:
        if self._client is None:
            self._client = JudgeClient(self._address, self._api_key, self._deadline_s)
        return self._client


class AsyncPeerReward(_Asking):
    """`PeerReward` for asyncio; may be used from several event loops."""

    _client: AsyncJudgeClient | None = None

    def __init__(self, judge: str | AsyncJudgeClient, **asking: Unpack[Asking]) -> None:
        super().__init__(judge, **asking)
        self._client = None if isinstance(judge, str) else judge

    async def __call__(
        self,
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        *,
        problem_id: Sequence[Any] | None = None,
        task: Task | Sequence[Task] | None = None,
        options: Sequence[Options | None] | None = None,
        step: int | None = None,
    ) -> list[float | None]:
        """As for `PeerReward`."""
        scored = await self.score(prompts, completions, problem_id=problem_id, task=task, options=options, step=step)
        return self.settle(scored)

    async def score(
        self,
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        *,
        problem_id: Sequence[Any] | None = None,
        task: Task | Sequence[Task] | None = None,
        options: Sequence[Options | None] | None = None,
        step: int | None = None,
    ) -> Scored:
        """As for `PeerReward`."""
        asking = self._ask(self._group(prompts, completions, problem_id, task, options), step)
        try:
            request, left = next(asking)
            while True:
                request, left = asking.send(await self._judge().scores(request, deadline_s=left))
        except StopIteration as end:
            scored: Scored = end.value
            return scored

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was given stays open."""
        if self._client is not None and self._address:
            await self._client.aclose()
            self._client = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __getstate__(self) -> dict[str, Any]:
        return self._state()

    def _judge(self) -> AsyncJudgeClient:
        if self._client is None:
            self._client = AsyncJudgeClient(self._address, self._api_key, self._deadline_s)
        return self._client
