"""Samples of one problem that are asked for at the same time are one score item: one vote, one look into the book.

A *lane* is one problem under one policy. While its request runs, whoever comes joins the next one, which runs when the
first is through: so any number of concurrent callers of a lane come down to a few requests, and to one vote. A request
that was begun is seen through though its callers have left: they come back, and find the vote filed.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from corl.wire import Policy, Prompt, ScoredItem, ScoreItem, Task, Vote
from corl_judge.compat.together import Ask, Together
from corl_judge.errors import Invalid, TooBusy, Unavailable, UpstreamFailed
from corl_judge.tasks import end
from corl_judge.votebook import text_id

__all__ = ["Coalescer", "Judged", "Question"]

RETRY_AFTER_S = 2.0
AGAIN_S = 0.5
MOST = 4096
"""Completions of one request."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem as asked. `options` as on the wire, with the letters' order kept."""

    prompt: Prompt
    task: Task
    policy: Policy
    options: tuple[tuple[str, str], ...] | tuple[str, ...] | None = None

    def id(self) -> str:
        prompt = self.prompt if isinstance(self.prompt, str) else repr(self.prompt)
        kind = "text" if isinstance(self.prompt, str) else "chat"
        return text_id(kind, prompt, self.task, repr(self.options), repr(self.policy))


@dataclass(frozen=True, slots=True)
class Judged:
    """One completion. `reward` is None where the vote is no label."""

    reward: float | None
    answer: str | None
    vote: Vote


@dataclass(eq=False, slots=True)
class _Waiter:
    completion: str
    deadline: float
    future: asyncio.Future[Judged]


@dataclass(eq=False, slots=True)
class _Lane:
    question: Question
    waiting: list[_Waiter] = field(default_factory=list)
    asked: list[_Waiter] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Coalescer:
    """`ask` answers a score request, as `Judge.scores` does; `vote_s` is the longest that one may take."""

    def __init__(self, ask: Ask, vote_s: float) -> None:
        self._together = Together(ask, vote_s)
        self._lanes: dict[str, _Lane] = {}

    async def judge(self, question: Question, completion: str, deadline: float) -> Judged:
        """One completion's verdict, by `deadline` (monotonic seconds).

        A queue that is full is tried again until then. Raises TooBusy, Unavailable, UpstreamFailed, Invalid.
        """
        key = question.id()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(question)
        waiter = _Waiter(completion, deadline, asyncio.get_running_loop().create_future())
        lane.waiting.append(waiter)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(key, lane), name="compat-lane")
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waiter.future
        except TimeoutError:
            raise Unavailable(
                "there was no vote before this request's deadline; work that was begun goes on: send it again",
                retry_after=RETRY_AFTER_S,
            ) from None
        finally:
            waiter.future.cancel()

    async def close(self) -> None:
        await end([lane.task for lane in self._lanes.values() if lane.task is not None])
        await self._together.close()

    async def _run(self, key: str, lane: _Lane) -> None:
        try:
            # Requests that arrived together are all read before this goes on.
            await asyncio.sleep(0)
            while waiting := [waiter for waiter in lane.waiting if not waiter.future.done()]:
                lane.asked, lane.waiting = waiting[:MOST], waiting[MOST:]
                try:
                    await self._answer(lane.question, lane.asked)
                except Exception as error:
                    _refuse(lane.asked, error)
                lane.asked = []
        finally:
            del self._lanes[key]
            _refuse(
                [*lane.asked, *lane.waiting], Unavailable("this replica is going away; send it again", retry_after=1)
            )

    async def _answer(self, question: Question, waiters: list[_Waiter]) -> None:
        places = {waiter.completion: 0 for waiter in waiters}
        places = {completion: place for place, completion in enumerate(places)}
        item = ScoreItem(
            id="0",
            problem_id=question.id(),
            prompt=question.prompt,
            completions=list(places),
            task=question.task,
            options=_options(question),
        )
        scored = await self._scored(item, question.policy, max(waiter.deadline for waiter in waiters))
        vote = scored.vote or Vote(status="none")
        for waiter in waiters:
            if not waiter.future.done():
                place = places[waiter.completion]
                reward = None if scored.rewards is None else scored.rewards[place]
                waiter.future.set_result(Judged(reward, scored.answers[place], vote))

    async def _scored(self, item: ScoreItem, policy: Policy, deadline: float) -> ScoredItem:
        """The only item's verdict; a full queue is waited for, since these callers would give up after a few tries."""
        while True:
            try:
                scored = await self._together.score(item, policy)
            except TooBusy:
                pause = AGAIN_S * random.uniform(0.5, 1.5)
                if time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
                continue
            if scored.failure is None:
                return scored
            message = scored.failure.message
            match scored.failure.kind:
                case "timeout":
                    raise Unavailable(message, retry_after=RETRY_AFTER_S)
                case "invalid":
                    raise Invalid(message)
                case _:
                    raise UpstreamFailed(message)


def _refuse(waiters: list[_Waiter], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.future.done():
            waiter.future.set_exception(error)


def _options(question: Question) -> list[str] | dict[str, str] | None:
    if question.options is None:
        return None
    pairs = [option for option in question.options if isinstance(option, tuple)]
    return dict(pairs) if pairs else [option for option in question.options if isinstance(option, str)]
