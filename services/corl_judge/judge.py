"""The peer judge: rollouts for its own trainer, rewards by its member's votes for everybody else's."""

from __future__ import annotations

import logging
import time

from corl.votes import Histogram
from corl.wire import (
    Completion,
    Failure,
    ProblemRollouts,
    RolloutsRequest,
    RolloutsResponse,
    ScoredItem,
    ScoreItem,
    ScoresRequest,
    ScoresResponse,
    Vote,
    WeightsTag,
)
from corl.wire_votes import to_wire
from corl_judge.ballots import Ballot, Ballots
from corl_judge.engines.base import PromptRejected
from corl_judge.errors import Invalid, Unavailable, UpstreamFailed
from corl_judge.grading import Grading, GradingFailed
from corl_judge.items import SampledItem, WorkItem, seed_of
from corl_judge.leases import Leases
from corl_judge.limits import check_rollouts, check_scores
from corl_judge.logs import context
from corl_judge.metrics import Metrics
from corl_judge.replica import Replica
from corl_judge.sampling import Asker, Sampler
from corl_judge.settings import Settings
from corl_judge.verdicts import Asked, Verdict
from corl_judge.votebook import Filed, VoteBook, VoteKey

__all__ = ["Judge"]

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0


class Judge:
    """Answers requests over the facts of an engine, a queue and the vote book; any replica can answer any request."""

    def __init__(
        self,
        settings: Settings,
        replica: Replica,
        leases: Leases,
        book: VoteBook,
        sampler: Sampler,
        ballots: Ballots,
        grading: Grading,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._replica = replica
        self._leases = leases
        self._book = book
        self._sampler = sampler
        self._ballots = ballots
        self._grading = grading
        self._metrics = metrics

    # Rollouts --------------------------------------------------------------------------------------------------------

    async def rollouts(self, request: RolloutsRequest, asker: Asker) -> RolloutsResponse:
        """n completions a problem. Raises Invalid, Conflict (fenced), TooBusy, Unavailable at the deadline."""
        check_rollouts(request, self._settings)
        assert self._replica.facts is not None
        if not self._replica.facts.token_ids:
            raise Invalid(
                f"member {self._settings.member!r} is another server's endpoint, whose token ids are unknown: it gives "
                "votes (POST /v1/scores), no rollouts"
            )
        if request.run is not None and request.incarnation is not None:
            await self._leases.fence(request.run, request.incarnation)
        ids = await self._prompt_ids(request)
        wanted = await self._hold(request, asker)
        items = [self._work_item(request, index, ids[index], wanted) for index in range(len(ids))]
        sampled = await self._sampler.sample("rollouts", items, asker)
        while stale := [
            i for i, s in enumerate(sampled) if isinstance(s, SampledItem) and not self._serves(request, s.weights)
        ]:
            # Weights that were wanted turned out to be broken after the work was queued.
            wanted = await self._hold(request, asker)
            again = [self._work_item(request, index, ids[index], wanted) for index in stale]
            for index, result in zip(stale, await self._sampler.sample("rollouts", again, asker), strict=True):
                sampled[index] = result
        await self._file(items, sampled)
        return self._rollouts_response(request, ids, sampled)

    async def _file(self, items: list[WorkItem], sampled: list[SampledItem | Failure]) -> None:
        """The worker files with the result; a stored result is of a time whose votes may have been dropped since."""
        votes = {
            item.vote.under(result.weights.digest): Filed(result.histogram, result.weights, "rollout")
            for item, result in zip(items, sampled, strict=True)
            if item.vote is not None and isinstance(result, SampledItem)
        }
        found = await self._book.read(list(votes))
        await self._book.file({key: vote for key, vote in votes.items() if key not in found})

    async def _prompt_ids(self, request: RolloutsRequest) -> list[list[int]]:
        assert self._replica.facts is not None
        longest = self._replica.facts.max_model_len
        ids: list[list[int]] = []
        for index, encoded in enumerate(await self._sampler.encode([p.prompt for p in request.problems])):
            problem = request.problems[index]
            if isinstance(encoded, PromptRejected):
                raise Invalid.field(f"problems.{index}.prompt", f"problem {problem.problem_id!r}: {encoded}")
            if len(encoded) + request.sampling.max_tokens > longest:
                raise Invalid.field(
                    "sampling.max_tokens",
                    f"problem {problem.problem_id!r} has {len(encoded)} prompt tokens, and with max_tokens "
                    f"{request.sampling.max_tokens} more than the model's {longest}: lower max_tokens to "
                    f"{max(longest - len(encoded), 0)} or shorten the prompt",
                    request.sampling.max_tokens,
                )
            ids.append(encoded)
        return ids

    def _serves(self, request: RolloutsRequest, weights: WeightsTag) -> bool:
        """Whether the weights are those that the trainer means: its own incarnation's, unless nothing was published."""
        if request.min_version is None:
            return True
        own = request.incarnation is None or weights.incarnation == request.incarnation
        untouched = weights.incarnation == 0 and request.min_version == 0
        return weights.version >= request.min_version and (own or untouched)

    async def _hold(self, request: RolloutsRequest, asker: Asker) -> WeightsTag:
        """The weights to sample with, once they are what the request asks for; a deadline makes it a 503."""
        while True:
            wanted, _ = await self._replica.weights()
            if self._serves(request, wanted):
                return wanted
            if asker.left_s <= 0:
                of = "" if request.incarnation is None else f" of incarnation {request.incarnation}"
                raise Unavailable(
                    f"min_version {request.min_version}{of} was not published before the deadline; the weights are "
                    f"{wanted.label()}: PUT /v1/weights first",
                    retry_after=RETRY_AFTER_S,
                )
            await self._replica.wait_changed(min(asker.left_s, self._settings.poll_s))

    def _work_item(self, request: RolloutsRequest, index: int, ids: list[int], wanted: WeightsTag) -> WorkItem:
        problem = request.problems[index]
        vote = None
        if request.run is not None and request.purpose == "train":
            vote = VoteKey(request.run, wanted.digest if request.step is None else request.step, problem.problem_id)
        moment = wanted.version if request.step is None else request.step
        settings = self._settings
        return WorkItem(
            purpose=request.purpose,
            problem_id=problem.problem_id,
            prompt=problem.prompt,
            prompt_token_ids=ids,
            task=problem.task,
            options=problem.options,
            n=request.n,
            sampling=request.sampling,
            wanted=wanted,
            seed=seed_of(settings.seed, settings.member, moment, problem.problem_id, request.purpose),
            run=request.run,
            step=request.step,
            vote=vote,
            submitted_at=time.time(),
            request_id=context().get("request_id"),
        )

    def _rollouts_response(
        self, request: RolloutsRequest, ids: list[list[int]], sampled: list[SampledItem | Failure]
    ) -> RolloutsResponse:
        failed = {request.problems[i].problem_id: s for i, s in enumerate(sampled) if isinstance(s, Failure)}
        if failed:
            name, failure = next(iter(failed.items()))
            if all(f.kind == "timeout" for f in failed.values()):
                raise Unavailable(
                    f"{len(failed)} of {len(sampled)} problems were not sampled before the deadline of "
                    f"{request.deadline_s} s; what is done is kept, so the same request can be sent again",
                    retry_after=RETRY_AFTER_S,
                )
            raise UpstreamFailed(f"{len(failed)} of {len(sampled)} problems failed; {name!r}: {failure.message}")
        problems = []
        for problem, prompt_ids, result in zip(request.problems, ids, sampled, strict=True):
            assert isinstance(result, SampledItem)
            vote = Histogram.from_bytes(result.histogram).tally()
            problems.append(
                ProblemRollouts(
                    problem_id=problem.problem_id,
                    prompt_token_ids=prompt_ids,
                    completions=[
                        Completion(
                            token_ids=rollout.sample.token_ids,
                            logprobs=rollout.sample.logprobs,
                            text=rollout.sample.text,
                            finish_reason=rollout.sample.finish_reason,
                            answer=rollout.answer,
                        )
                        for rollout in result.rollouts
                    ],
                    vote=to_wire(vote, source="rollout", weights=result.weights),
                    weights=result.weights,
                )
            )
        oldest = min((p.weights for p in problems), key=lambda tag: (tag.incarnation, tag.version))
        return RolloutsResponse(
            member=self._settings.member, run=request.run, step=request.step, problems=problems, weights=oldest
        )

    # Scores ----------------------------------------------------------------------------------------------------------

    async def scores(self, request: ScoresRequest, asker: Asker) -> ScoresResponse:
        """Every item against this member's vote. Raises Invalid or TooBusy; an item's own trouble is its status."""
        check_scores(request, self._settings)
        _, served = await self._replica.weights()
        ballots, waited = await self._ballots.obtain(request, asker)
        judged = await self._judged(request, ballots)
        items = [self._scored(request, item, ballots[item.id], judged.get(item.id)) for item in request.items]
        for item in items:
            self._metrics.scored.labels(item.status).inc()
            if item.vote is not None:
                self._metrics.vote(item.vote)
        return ScoresResponse(
            member=self._settings.member,
            run=request.run,
            step=request.step,
            items=items,
            weights=served,
            waited_s=waited,
        )

    async def _judged(self, request: ScoresRequest, ballots: dict[str, Ballot]) -> dict[str, Verdict | GradingFailed]:
        policy = request.policy
        asked: dict[str, Asked] = {}
        for item in request.items:
            filed = ballots[item.id].filed
            if filed is not None:
                asked[item.id] = Asked(
                    item.completions,
                    item.task,
                    item.options,
                    filed.histogram,
                    policy.threshold,
                    policy.ties,
                    policy.min_parsed,
                )
        return dict(zip(asked, await self._grading.judge(list(asked.values())), strict=True))

    def _scored(
        self, request: ScoresRequest, item: ScoreItem, ballot: Ballot, verdict: Verdict | GradingFailed | None
    ) -> ScoredItem:
        def failed(failure: Failure) -> ScoredItem:
            log.warning("item %s of problem %s failed: %s", item.id, item.problem_id, failure.message)
            return ScoredItem(id=item.id, problem_id=item.problem_id, status="failed", failure=failure)

        if ballot.failure is not None:
            return failed(ballot.failure)
        if isinstance(verdict, GradingFailed):
            return failed(Failure(kind="internal", message=str(verdict)))
        if ballot.filed is None or verdict is None:
            # The present weights are older than the asker takes, so nothing was sampled: no label, no answers.
            nothing = Vote(status="none", histogram=[] if request.histogram else None)
            unread: list[str | None] = [None] * len(item.completions)
            return ScoredItem(id=item.id, problem_id=item.problem_id, status="unlabeled", answers=unread, vote=nothing)
        vote = verdict.labeled_by(ballot.filed.source, ballot.filed.weights, histogram=request.histogram)
        rewards = verdict.rewards
        if ballot.stale and rewards is not None:
            # Too old to label for this asker: as weak as a share below the asker's threshold.
            vote, rewards = vote.model_copy(update={"status": "weak"}), None
        return ScoredItem(
            id=item.id,
            problem_id=item.problem_id,
            status="unlabeled" if rewards is None else "scored",
            rewards=rewards,
            answers=verdict.answers,
            vote=vote,
        )
