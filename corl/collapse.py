"""Signs that a run collapses, watched step by step over a window.

Label-free rewards can be earned without getting better: by always giving the same answer. Nothing in the reward shows
it; what shows it is that variety goes. None of the signs is proof (a task that is learnt also has little variety left),
so they are warnings for a person, never a change of the training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from corl.diversity import Diversity, answer_entropy, concentration
from corl.rewards import spread

__all__ = ["CollapseMonitor", "Sign", "SignKind", "StepSummary", "Thresholds", "cohort_signs", "summarize"]

MIN_PROBLEMS = 4
SignKind = Literal["reward_spread", "vote_share", "length", "entropy", "constant", "redundant"]


@dataclass(frozen=True)
class Sign:
    """A sign of collapse: what was measured, over what it went, and what it means, in one sentence."""

    kind: SignKind
    value: float
    threshold: float
    message: str


@dataclass(frozen=True)
class Thresholds:
    """When a figure becomes a sign.

    Attributes:
        reward_spread: `reward_spread` below this. GRPO learns from differences within a group only; groups without any
            give no gradient (DAPO, arXiv 2503.14476, section 3.2; TRL logs them as `frac_reward_zero_std`).
        vote_share: `vote_share` above this. Under a self-made vote the share *is* the reward, and its way to 1 is how
            majority-vote training ends (arXiv 2505.21444); under a peer's vote it is certainty without proof.
        length_ratio: `length` more than this times the first window's, or less than one over it.
        entropy_ratio: `entropy` below this times the first window's. Policies lose their entropy early, and with it
            what they could still explore (Cui et al. 2025, The Entropy Mechanism of RL, arXiv 2505.22617).
        concentration: `concentration` above this: one answer to nearly all problems.
        error_kappa: a pair's above this: two members err on the same problems, and cannot teach each other.
    """

    reward_spread: float = 0.02
    vote_share: float = 0.98
    length_ratio: float = 2.0
    entropy_ratio: float = 0.1
    concentration: float = 0.9
    error_kappa: float = 0.9


@dataclass(frozen=True)
class StepSummary:
    """One step of one member in figures; None where the step had nothing to measure it on.

    Attributes:
        step: the step.
        reward_spread: mean over the labeled groups of the unbiased standard deviation of their rewards.
        vote_share: mean share of the member's own votes, in 0..1.
        length: mean length of the completions, in tokens.
        entropy: mean entropy in nats; of the policy's tokens if the trainer knows it, else of each group's answers.
        concentration: share of the most frequent among the step's voted answers, in 0..1.
    """

    step: int
    reward_spread: float | None = None
    vote_share: float | None = None
    length: float | None = None
    entropy: float | None = None
    concentration: float | None = None


def summarize(
    step: int,
    *,
    rewards: Sequence[Sequence[float | None]] = (),
    vote_shares: Sequence[float] = (),
    lengths: Sequence[int] = (),
    answers: Sequence[Sequence[Hashable | None]] = (),
    voted: Sequence[Hashable | None] = (),
    entropy: float | None = None,
) -> StepSummary:
    """Make a step's figures.

    Args:
        rewards: of each group, None for rows without one.
        vote_shares: of the member's own vote on each problem.
        lengths: of each completion, in tokens.
        answers: keys of each group's answers; used for `entropy` if that is not given.
        voted: key of the member's own vote on each problem; None without a winner.
        entropy: of the policy, in nats per token.
    """
    spreads = [found for group in rewards if (found := spread(group)) is not None]
    if entropy is None:
        entropy = _mean([answer_entropy(group) for group in answers])
    # Of two or three problems one answer may well be the right one to most.
    several = sum(answer is not None for answer in voted) >= MIN_PROBLEMS
    return StepSummary(
        step=step,
        reward_spread=_mean(spreads),
        vote_share=_mean(vote_shares),
        length=_mean(lengths),
        entropy=entropy,
        concentration=concentration(voted) if several else None,
    )


class CollapseMonitor:
    """Watches the steps of one member and reports each sign when it appears, and again only after it had gone.

    A sign is a mean over the last `window` steps that had the figure; the first `window` of them are what drifts are
    measured against. Not thread-safe. A resumed trainer gives it the summaries of the earlier steps again.
    """

    def __init__(self, window: int = 10, thresholds: Thresholds | None = None) -> None:
        if window < 1:
            raise ValueError(f"window {window!r}: expected 1 or more steps")
        self.window = window
        self.thresholds = thresholds or Thresholds()
        self._recent: dict[str, deque[float]] = {}
        self._first: dict[str, list[float]] = {}
        self._active: dict[SignKind, Sign] = {}

    @property
    def active(self) -> list[Sign]:
        """The signs that hold after the last step."""
        return list(self._active.values())

    def observe(self, summary: StepSummary) -> list[Sign]:
        """Take in a step; the signs that have newly appeared."""
        for name in ("reward_spread", "vote_share", "length", "entropy", "concentration"):
            value: float | None = getattr(summary, name)
            if value is not None:
                self._recent.setdefault(name, deque(maxlen=self.window)).append(value)
                first = self._first.setdefault(name, [])
                if len(first) < self.window:
                    first.append(value)
        found = {sign.kind: sign for sign in self._signs()}
        new = [sign for kind, sign in found.items() if kind not in self._active]
        self._active = found
        return new

    def _signs(self) -> list[Sign]:
        limit = self.thresholds
        over = f"over the last {self.window} steps"
        signs = []
        deviation = self._now("reward_spread")
        if deviation is not None and deviation < limit.reward_spread:
            text = f"rewards of a group hardly differ (standard deviation {deviation:.3g} {over}): no gradient is left"
            signs.append(Sign("reward_spread", deviation, limit.reward_spread, text))
        share = self._now("vote_share")
        if share is not None and share > limit.vote_share:
            text = f"{share:.1%} of the answers are the vote's {over}: the votes have become certain"
            signs.append(Sign("vote_share", share, limit.vote_share, text))
        length, long_ago = self._now("length"), self._then("length")
        if length is not None and long_ago:
            ratio = length / long_ago
            if not 1 / limit.length_ratio <= ratio <= limit.length_ratio:
                text = f"completions have {length:.0f} tokens {over}, {ratio:.2f} times those of the first steps"
                signs.append(Sign("length", ratio, limit.length_ratio, text))
        entropy, before = self._now("entropy"), self._then("entropy")
        if entropy is not None and before:
            ratio = entropy / before
            if ratio < limit.entropy_ratio:
                text = f"entropy is {entropy:.3g} nats {over}, {ratio:.2f} times that of the first steps"
                signs.append(Sign("entropy", ratio, limit.entropy_ratio, text))
        constant = self._now("concentration")
        if constant is not None and constant > limit.concentration:
            text = f"{constant:.0%} of the problems are voted the same answer {over}"
            signs.append(Sign("constant", constant, limit.concentration, text))
        return signs

    def _now(self, name: str) -> float | None:
        recent = self._recent.get(name, deque())
        return _mean(list(recent)) if len(recent) == self.window else None

    def _then(self, name: str) -> float | None:
        return _mean(self._first.get(name, []))


def cohort_signs(diversity: Diversity, thresholds: Thresholds | None = None) -> list[Sign]:
    """Signs of collapse in a cohort's answers to the same problems; high agreement is not one, nor is it health.

    `constant`: a member gives one answer to nearly all problems. `redundant`: two members err on the same problems, so
    that neither can teach the other (only where truth is known).
    """
    limit = thresholds or Thresholds()
    signs = []
    for name, share in diversity.concentration.items():
        if share is not None and share > limit.concentration:
            text = f"{name} gives one answer to {share:.0%} of the problems"
            signs.append(Sign("constant", share, limit.concentration, text))
    for (one, other), pair in diversity.pairs.items():
        if pair.error_kappa is not None and pair.error_kappa > limit.error_kappa:
            text = f"{one} and {other} err on the same problems (kappa {pair.error_kappa:.2f})"
            signs.append(Sign("redundant", pair.error_kappa, limit.error_kappa, text))
    return signs


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
