"""What a judge must not send: answers that do not fit the request, or weights that go back in time.

Every check raises ValueError (or `OlderWeights`) with what was expected and what came; the caller names the judge.
"""

from __future__ import annotations

from threading import Lock

from corl.wire import (
    JobRequest,
    JobStatus,
    RolloutsRequest,
    RolloutsResponse,
    ScoredItem,
    ScoreItem,
    ScoresRequest,
    ScoresResponse,
    TrainerLease,
    TrainerUpdate,
    VotesDropped,
    WeightsStatus,
    WeightsTag,
    WeightsUpdate,
)
from corl.wire_votes import from_wire, histogram_from_wire

__all__ = [
    "HighWater",
    "OlderWeights",
    "check_dropped",
    "check_job",
    "check_lease",
    "check_published",
    "check_rollouts",
    "check_scores",
    "newer_than",
]


class OlderWeights(ValueError):
    """The weights of an answer are older than ones seen before the request was sent."""

    def __init__(self, got: WeightsTag, seen: WeightsTag) -> None:
        super().__init__(
            f"answered with weights {got.label()}, older than {seen.label()}, which it answered with before"
        )
        self.got = got
        self.seen = seen


def newer_than(tag: WeightsTag, other: WeightsTag) -> bool:
    """By incarnation, then version. Equal digests are the same weights under two labels, neither newer."""
    return tag.digest != other.digest and (tag.incarnation, tag.version) > (other.incarnation, other.version)


class HighWater:
    """The newest weights that one judge has shown; thread-safe.

    An answer is held against the mark as it stood when its request was first sent, since an answer that overtook it may
    rightly be newer.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: WeightsTag | None = None

    def now(self) -> WeightsTag | None:
        with self._lock:
            return self._newest

    def check(self, tag: WeightsTag, floor: WeightsTag | None) -> None:
        """Raises OlderWeights if `tag` is older than `floor`; else the mark rises to it."""
        if floor is not None and newer_than(floor, tag):
            raise OlderWeights(tag, floor)
        with self._lock:
            if self._newest is None or not newer_than(self._newest, tag):
                self._newest = tag

    def reset(self, tag: WeightsTag | None) -> None:
        """Put the mark where it is rightly lower."""
        with self._lock:
            self._newest = tag


def check_rollouts(request: RolloutsRequest, response: RolloutsResponse) -> None:
    _echoed("run", request.run, response.run)
    _echoed("step", request.step, response.step)
    _echoed("problem ids", [p.problem_id for p in request.problems], [p.problem_id for p in response.problems])
    for asked, got in zip(request.problems, response.problems, strict=True):
        where = f"problem {got.problem_id!r}"
        _length(f"{where}: completions", len(got.completions), request.n)
        for index, completion in enumerate(got.completions):
            _length(f"{where}: logprobs of completion {index}", len(completion.logprobs), len(completion.token_ids))
        if isinstance(asked.prompt, list) and isinstance(asked.prompt[0], int):
            _echoed(f"{where}: prompt_token_ids", asked.prompt, got.prompt_token_ids)
        vote = from_wire(got.vote)
        if request.purpose == "train" or vote.total:
            _length(f"{where}: answers in the vote", got.vote.total, request.n)
        if newer_than(response.weights, got.weights):
            raise ValueError(f"{where}: weights {got.weights.label()} are older than {response.weights.label()} of all")
    if request.min_version is not None and response.weights.version < request.min_version:
        raise ValueError(f"weights: expected version {request.min_version} or later, got {response.weights.label()}")


def check_scores(request: ScoresRequest, response: ScoresResponse) -> None:
    _echoed("run", request.run, response.run)
    _echoed("step", request.step, response.step)
    _echoed("item ids", [item.id for item in request.items], [item.id for item in response.items])
    for asked, got in zip(request.items, response.items, strict=True):
        _check_item(asked, got, histogram=request.histogram)


def _check_item(asked: ScoreItem, got: ScoredItem, *, histogram: bool) -> None:
    where = f"item {got.id!r}"
    _echoed(f"{where}: problem_id", asked.problem_id, got.problem_id)
    if got.status == "failed":
        if got.failure is None or got.rewards is not None:
            raise ValueError(f"{where}: status is 'failed': expected a failure and no rewards")
        return
    _length(f"{where}: answers", len(got.answers), len(asked.completions))
    if got.vote is None or from_wire(got.vote).labeled is not (got.status == "scored"):
        status = got.vote and got.vote.status
        raise ValueError(f"{where}: status is {got.status!r} but that of the vote is {status!r}")
    if histogram and histogram_from_wire(got.vote) is None:
        raise ValueError(f"{where}: expected a histogram with the vote")
    if got.status == "unlabeled":
        if got.rewards is not None:
            raise ValueError(f"{where}: status is 'unlabeled': expected no rewards")
        return
    if got.rewards is None:
        raise ValueError(f"{where}: status is 'scored': expected rewards")
    _length(f"{where}: rewards", len(got.rewards), len(asked.completions))
    for index, reward in enumerate(got.rewards):
        if not 0.0 <= reward <= 1.0:
            raise ValueError(f"{where}: reward {index} is {reward!r}: expected a number in 0..1")


def check_job(job_id: str | None, request: JobRequest | None, status: JobStatus) -> None:
    """`job_id` and `request` are what was asked for, as far as it is known."""
    if job_id is not None:
        _echoed("id", job_id, status.id)
    if request is not None:
        _echoed("kind", request.kind, status.kind)
    if status.done > status.total:
        raise ValueError(f"{status.done} of {status.total} items are done")
    if status.status != "done":
        return
    wanted = RolloutsResponse if status.kind == "rollouts" else ScoresResponse
    if not isinstance(status.result, wanted):
        raise ValueError(f"a job of kind {status.kind!r} is done without its result")
    if request is not None and isinstance(request.request, RolloutsRequest):
        assert isinstance(status.result, RolloutsResponse)
        check_rollouts(request.request, status.result)
    elif request is not None and isinstance(request.request, ScoresRequest):
        assert isinstance(status.result, ScoresResponse)
        check_scores(request.request, status.result)


def check_published(update: WeightsUpdate, status: WeightsStatus) -> None:
    """The answer to a publication must say that this version, or a later one, is wanted now."""
    asked = WeightsTag(incarnation=update.incarnation, version=update.version, digest=update.digest)
    desired = status.desired
    if desired is None or newer_than(asked, desired):
        raise ValueError(f"desired: expected {asked.label()}, got {desired and desired.label()}")
    if (desired.incarnation, desired.version) == (asked.incarnation, asked.version):
        _echoed("desired digest", asked.digest, desired.digest)


def check_lease(update: TrainerUpdate, lease: TrainerLease) -> None:
    _echoed("run", update.run, lease.run)
    _echoed("step", update.step, lease.step)
    if update.incarnation is not None:
        _echoed("incarnation", update.incarnation, lease.incarnation)


def check_dropped(run: str, after: int, dropped: VotesDropped) -> None:
    _echoed("run", run, dropped.run)
    _echoed("after", after, dropped.after)


def _echoed(what: str, asked: object, got: object) -> None:
    if asked != got:
        raise ValueError(f"{what}: expected {_short(asked)}, got {_short(got)}")


def _length(what: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{what}: expected {expected}, got {got}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}... ({len(text)} characters)"
