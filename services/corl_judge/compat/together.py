"""Problems whose votes are in the book are asked about together: one request for all that come while another runs.

A problem that is asked about for the first time goes alone, since its vote may have to be sampled, and nobody else
should wait for that. (After new weights all votes have to be sampled anew, together.)
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from corl.wire import Policy, ScoredItem, ScoreItem, ScoresRequest, ScoresResponse
from corl_judge.sampling import Asker
from corl_judge.tasks import end

__all__ = ["Ask", "Together"]

REMEMBERED = 1 << 17
MOST_ITEMS = 512
MOST_COMPLETIONS = 4096

Ask = Callable[[ScoresRequest, Asker], Awaitable[ScoresResponse]]


@dataclass(eq=False, slots=True)
class _Gathering:
    waiting: list[tuple[ScoreItem, asyncio.Future[ScoredItem]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Together:
    """`ask` answers a score request, as `Judge.scores` does; `vote_s` is the longest that one may take."""

    def __init__(self, ask: Ask, vote_s: float) -> None:
        self._ask = ask
        self._vote_s = vote_s
        self._filed: OrderedDict[str, None] = OrderedDict()
        self._gathering: dict[Policy, _Gathering] = {}

    async def score(self, item: ScoreItem, policy: Policy) -> ScoredItem:
        """One item's verdict; `problem_id` tells problems apart. Raises what the judge raises for the request."""
        if item.problem_id not in self._filed:
            [scored] = await self._request([item], policy)
            if scored.failure is None:
                self._filed[item.problem_id] = None
                if len(self._filed) > REMEMBERED:
                    self._filed.popitem(last=False)
            return scored
        self._filed.move_to_end(item.problem_id)
        gathering = self._gathering.setdefault(policy, _Gathering())
        future: asyncio.Future[ScoredItem] = asyncio.get_running_loop().create_future()
        gathering.waiting.append((item, future))
        if gathering.task is None:
            gathering.task = asyncio.create_task(self._run(policy, gathering), name="compat-together")
        return await future

    async def close(self) -> None:
        await end([gathering.task for gathering in self._gathering.values() if gathering.task is not None])

    async def _run(self, policy: Policy, gathering: _Gathering) -> None:
        asked: list[tuple[ScoreItem, asyncio.Future[ScoredItem]]] = []
        try:
            await asyncio.sleep(0)
            while gathering.waiting:
                asked, gathering.waiting = _first(gathering.waiting)
                try:
                    scored = await self._request([item for item, _ in asked], policy)
                except Exception as error:
                    for _, future in asked:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), item in zip(asked, scored, strict=True):
                    if not future.done():
                        future.set_result(item)
        finally:
            del self._gathering[policy]
            for _, future in (*asked, *gathering.waiting):
                future.cancel()

    async def _request(self, items: list[ScoreItem], policy: Policy) -> list[ScoredItem]:
        numbered = [item.model_copy(update={"id": str(place)}) for place, item in enumerate(items)]
        asker = Asker(f"compat-{uuid.uuid4().hex[:12]}", time.monotonic() + self._vote_s)
        return (await self._ask(ScoresRequest(items=numbered, policy=policy), asker)).items


def _first(
    waiting: list[tuple[ScoreItem, asyncio.Future[ScoredItem]]],
) -> tuple[list[tuple[ScoreItem, asyncio.Future[ScoredItem]]], list[tuple[ScoreItem, asyncio.Future[ScoredItem]]]]:
    """As many as one request takes, and the rest."""
    completions = 0
    for place, (item, _) in enumerate(waiting):
        completions += len(item.completions)
        if place == MOST_ITEMS or (place and completions > MOST_COMPLETIONS):
            return waiting[:place], waiting[place:]
    return waiting, []
