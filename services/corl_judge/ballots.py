"""Votes for askers: filed ones from the book, else waited for, else sampled.

The wait rule: a judge waits for a vote only if its trainer is about to file it (the lease is live and its step close
behind the asked one), or no trainer was ever seen and `start_wait_s` has not passed. Nobody waits for a frozen member,
for the dead, or for a trainer that is far behind.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from corl.wire import Failure, Policy, Prompt, Sampling, ScoreItem, ScoresRequest, WeightsTag
from corl_judge.engines.base import PromptRejected
from corl_judge.items import SampledItem, WorkItem, seed_of
from corl_judge.leases import Leases
from corl_judge.logs import context
from corl_judge.metrics import Metrics
from corl_judge.replica import Replica
from corl_judge.sampling import Asker, Sampler
from corl_judge.settings import Settings
from corl_judge.texts import OwnTexts
from corl_judge.votebook import Filed, VoteBook, VoteKey, text_id

__all__ = ["Ballot", "Ballots"]

log = logging.getLogger(__name__)

NEAR_STEPS = 4
"""How far behind a trainer may be for its vote to be waited for when the asker takes votes of any age."""
LEASE_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Ballot:
    """What an item's vote came to. `stale`: the vote's weights are older than the asker takes."""

    filed: Filed | None = None
    failure: Failure | None = None
    stale: bool = False


class Ballots:
    def __init__(
        self,
        settings: Settings,
        replica: Replica,
        book: VoteBook,
        leases: Leases,
        sampler: Sampler,
        texts: OwnTexts,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._replica = replica
        self._book = book
        self._leases = leases
        self._sampler = sampler
        self._texts = texts
        self._metrics = metrics

    async def obtain(self, request: ScoresRequest, asker: Asker) -> tuple[dict[str, Ballot], float]:
        """A ballot for every item id, and the seconds that were spent waiting for votes. Raises TooBusy."""
        wanted, _ = await self._replica.weights()
        keys = {item.id: self._key(request, item, wanted) for item in request.items}
        filed = await self._book.read(list(set(keys.values())))
        missing = [key for key in dict.fromkeys(keys.values()) if key not in filed]
        waited = 0.0
        if missing and self._may_wait(request):
            started = time.monotonic()
            filed |= await self._wait(request, missing, asker)
            waited = time.monotonic() - started
            self._metrics.vote_wait.observe(waited)
            wanted, _ = await self._replica.weights()

        # A filed vote of weights too old for this asker is sampled anew where the present weights would do.
        fresh_enough = self._lag(request, wanted, wanted) <= _limit(request.policy)
        for item in request.items:
            key = keys[item.id]
            if (
                key in filed
                and self._lag(request, filed[key].weights, wanted) > _limit(request.policy)
                and fresh_enough
            ):
                keys[item.id] = VoteKey(key.run, f"{key.slot}@{wanted.digest}", key.problem)
        renewed = [key for key in set(keys.values()) if key not in filed and key not in missing]
        filed |= await self._book.read(renewed)

        todo = {keys[item.id]: item for item in request.items if keys[item.id] not in filed}
        failures: dict[VoteKey, Failure] = {}
        if todo and fresh_enough:
            sampled = await self._sample(request, todo, wanted, asker)
            filed |= {key: outcome for key, outcome in sampled.items() if isinstance(outcome, Filed)}
            failures = {key: outcome for key, outcome in sampled.items() if isinstance(outcome, Failure)}
        return {
            item_id: self._ballot(request, filed.get(key), failures.get(key), wanted) for item_id, key in keys.items()
        }, waited

    def _ballot(
        self, request: ScoresRequest, filed: Filed | None, failure: Failure | None, wanted: WeightsTag
    ) -> Ballot:
        if failure is not None:
            return Ballot(failure=failure)
        if filed is None:
            return Ballot(stale=True)
        return Ballot(filed, stale=self._lag(request, filed.weights, wanted) > _limit(request.policy))

    # Identity and age ------------------------------------------------------------------------------------------------

    def _key(self, request: ScoresRequest, item: ScoreItem, wanted: WeightsTag) -> VoteKey:
        if request.run is not None:
            slot = wanted.digest if request.step is None else request.step
            return VoteKey(request.run, slot, item.problem_id)
        asked = ScoreAsked(item, request.policy.samples, self._sampling(request))
        return VoteKey(None, wanted.digest, asked.id())

    def _lag(self, request: ScoresRequest, weights: WeightsTag, wanted: WeightsTag) -> int:
        """Steps that the weights are older than asked for; those of a frozen member never age."""
        if self._settings.frozen:
            return 0
        return (wanted.version if request.step is None else request.step) - weights.version

    # Waiting ---------------------------------------------------------------------------------------------------------

    def _may_wait(self, request: ScoresRequest) -> bool:
        named = request.run is not None and request.step is not None
        return named and not self._settings.frozen and request.policy.wait_s > 0

    async def _wait(self, request: ScoresRequest, missing: list[VoteKey], asker: Asker) -> dict[VoteKey, Filed]:
        found: dict[VoteKey, Filed] = {}
        deadline = time.monotonic() + min(request.policy.wait_s, asker.left_s)
        while missing and (left := deadline - time.monotonic()) > 0:
            patience = await self._patience(request)
            if patience <= 0:
                break
            await self._book.wait(missing, min(left, patience, LEASE_LOOK_S))
            found |= await self._book.read(missing)
            missing = [key for key in missing if key not in found]
        return found

    async def _patience(self, request: ScoresRequest) -> float:
        """Seconds for which the trainer may still be waited for, as far as is known now."""
        assert request.run is not None
        assert request.step is not None
        seen = await self._leases.seen(request.run)
        if seen.incarnation is None or seen.step is None:
            return self._settings.start_wait_s - seen.asked_s
        max_lag = NEAR_STEPS if request.policy.max_lag is None else request.policy.max_lag
        # A trainer that is past the asked step will not file it any more.
        return LEASE_LOOK_S if seen.live and 0 <= request.step - seen.step <= max_lag else 0.0

    # Sampling --------------------------------------------------------------------------------------------------------

    def _sampling(self, request: ScoresRequest) -> Sampling:
        if request.sampling is not None:
            return request.sampling
        return Sampling(max_tokens=self._settings.vote_max_tokens, temperature=self._settings.vote_temperature)

    async def _sample(
        self, request: ScoresRequest, todo: dict[VoteKey, ScoreItem], wanted: WeightsTag, asker: Asker
    ) -> dict[VoteKey, Filed | Failure]:
        outcomes: dict[VoteKey, Filed | Failure] = {}
        assert self._replica.facts is not None
        chat = self._replica.facts.chat_template
        prompts = [
            own if (own := self._texts.prompt(request.run, item.problem_id, chat=chat)) is not None else item.prompt
            for item in todo.values()
        ]
        items: dict[VoteKey, WorkItem] = {}
        for (key, item), prompt, ids in zip(todo.items(), prompts, await self._sampler.encode(prompts), strict=True):
            if isinstance(ids, PromptRejected):
                outcomes[key] = Failure(kind="invalid", message=f"prompt: {ids}")
                continue
            items[key] = self._work_item(request, key, item, prompt, ids, wanted)
        sampled = await self._sampler.sample("votes", list(items.values()), asker)
        for key, result in zip(items, sampled, strict=True):
            outcomes[key] = result if isinstance(result, Failure) else _filed(result)
        # Whoever filed first is whom everybody reads: another replica, or the trainer's own rollouts.
        done = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Filed)}
        found = await self._book.read(list(done))
        await self._book.file({key: vote for key, vote in done.items() if key not in found and key.run is not None})
        return outcomes | found

    def _work_item(
        self, request: ScoresRequest, key: VoteKey, item: ScoreItem, prompt: Prompt, ids: list[int], wanted: WeightsTag
    ) -> WorkItem:
        sampling = self._sampling(request)
        assert self._replica.facts is not None
        room = self._replica.facts.max_model_len - len(ids)
        if sampling.max_tokens > room:
            sampling = sampling.model_copy(update={"max_tokens": room})
        moment = wanted.version if request.step is None else request.step
        return WorkItem(
            purpose="vote",
            problem_id=key.problem,
            prompt=prompt,
            prompt_token_ids=ids,
            task=item.task,
            options=item.options,
            n=request.policy.samples,
            sampling=sampling,
            wanted=wanted,
            seed=seed_of(self._settings.seed, self._settings.member, moment, key.problem, "vote"),
            run=request.run,
            step=request.step,
            vote=key,
            submitted_at=time.time(),
            request_id=context().get("request_id"),
        )


@dataclass(frozen=True, slots=True)
class ScoreAsked:
    """Everything that a vote outside a run depends on, besides the weights."""

    item: ScoreItem
    samples: int
    sampling: Sampling

    def id(self) -> str:
        item = self.item
        prompt = item.prompt if isinstance(item.prompt, str) else repr([part.model_dump() for part in item.prompt])  # type: ignore[union-attr]
        kind = "text" if isinstance(item.prompt, str) else "chat"
        return text_id(kind, prompt, item.task, repr(item.options), str(self.samples), repr(self.sampling))


def _limit(policy: Policy) -> float:
    return float("inf") if policy.max_lag is None else policy.max_lag


def _filed(sampled: SampledItem) -> Filed:
    return Filed(sampled.histogram, sampled.weights, "fresh")
