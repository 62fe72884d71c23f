"""What a step says: the metrics of its rollouts and votes, its progress line, and samples of its completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from corl.diversity import concentration
from corl.votes import Vote, attach
from corl_trainer.runlog import RunLog
from corl_trainer.sources import StepBatch, Verdicts

__all__ = ["StepMetrics", "progress_line", "step_metrics"]

MIN_PROBLEMS = 4
"""Of two or three problems one answer may well be the right one to most."""
STATUSES = ("ok", "tie", "weak", "none")


def step_metrics(batch: StepBatch, verdicts: Verdicts, own: list[Vote]) -> dict[str, float]:
    """Metrics of a step by name. Shares are of problems unless the name says otherwise.

    `reward/*` over labeled completions; `votes/labeled` the share of problems with a reward; `votes/agreement` the
    share of problems labeled by both on which the own vote is the label; `votes/label_share` and `votes/own_share` the
    mean share of the winner; `votes/concentration` the share of the most frequent own vote; `votes/fresh` how many
    votes a teacher had to sample for us; `rollouts/lag` updates that the sampling weights were behind;
    `rollouts/answered` and `rollouts/truncated` shares of completions.
    """
    given = [reward for rewards in verdicts.rewards if rewards is not None for reward in rewards]
    spreads = [stdev(rewards) for rewards in verdicts.rewards if rewards is not None and len(rewards) > 1]
    completions = [completion for problem in batch.problems for completion in problem.completions]
    labels = [label for label in verdicts.labels if label is not None]
    both = [
        (mine, label)
        for mine, label in zip(own, verdicts.labels, strict=True)
        if label is not None and label.labeled and mine.labeled
    ]
    found: dict[str, float | None] = {
        "reward/mean": _mean(given),
        "reward/std": stdev(given) if len(given) > 1 else None,
        "reward/group_std": _mean(spreads),
        "votes/labeled": fmean(rewards is not None for rewards in verdicts.rewards),
        "votes/agreement": _mean(float(attach(mine.key, label)) for mine, label in both),
        "votes/label_share": _mean(label.share for label in labels if label.labeled),
        "votes/own_share": _mean(vote.share for vote in own if vote.parsed),
        "votes/own_labeled": fmean(vote.labeled for vote in own),
        "votes/fresh": float(verdicts.fresh),
        "votes/concentration": concentration([vote.key for vote in own]) if len(own) >= MIN_PROBLEMS else None,
        "rollouts/answered": fmean(completion.answer is not None for completion in completions),
        "rollouts/truncated": fmean(completion.finish_reason == "length" for completion in completions),
        "rollouts/tokens": fmean(len(completion.token_ids) for completion in completions),
        "rollouts/lag": fmean(max(0, batch.step - problem.weights.version) for problem in batch.problems),
    }
    if labels:
        found |= {f"votes/{status}": fmean(label.status == status for label in labels) for status in STATUSES}
    return {name: value for name, value in found.items() if value is not None}


def progress_line(
    member: str, step: int, steps: int, metrics: Mapping[str, float], seconds: Mapping[str, float]
) -> str:
    """One line a step: reward, labels, agreement, and where the seconds went."""
    parts = [f"{member} {step}/{steps}"]
    if "reward/mean" in metrics:
        parts.append(f"reward {metrics['reward/mean']:.3f} ±{metrics.get('reward/std', 0.0):.2f}")
    parts.append(f"labeled {metrics.get('votes/labeled', 0.0):.0%}")
    if "votes/agreement" in metrics:
        parts.append(f"agree {metrics['votes/agreement']:.0%}")
    if "accuracy" in metrics:
        parts.append(f"acc {metrics['accuracy']:.3f}")
    if metrics.get("votes/fresh"):
        parts.append(f"fresh {metrics['votes/fresh']:.0f}")
    times = [f"{name} {seconds[name]:.2f}" for name in ("rollouts", "scores", "waiting", "update", "publish")]
    return "  ".join([*parts, f"{seconds['step']:.2f} s ({', '.join(times)})"])


@dataclass
class StepMetrics:
    """Collects a step's metrics on the main rank. `accuracy`: whether the reward is the accuracy (source truth)."""

    own_votes: Callable[[StepBatch], list[Vote]]
    accuracy: bool
    samples: RunLog | None
    samples_every: int | None
    question: Callable[[str], str]
    values: dict[str, float] = field(default_factory=dict)

    def observe(self, batch: StepBatch, verdicts: Verdicts) -> None:
        own = self.own_votes(batch)
        self.values = step_metrics(batch, verdicts, own)
        if self.accuracy and "reward/mean" in self.values:
            self.values["accuracy"] = self.values["reward/mean"]
        if self.samples is not None and self.samples_every and batch.step % self.samples_every == 0:
            self._write_samples(self.samples, batch, verdicts, own)

    def add(self, values: Mapping[str, float]) -> None:
        """More of the step under way."""
        self.values = {**self.values, **values}

    def _write_samples(self, log: RunLog, batch: StepBatch, verdicts: Verdicts, own: list[Vote]) -> None:
        for problem, rewards, label, mine in zip(batch.problems, verdicts.rewards, verdicts.labels, own, strict=True):
            log.write(
                "completions",
                batch.step,
                problem_id=problem.problem_id,
                problem=self.question(problem.problem_id),
                label=_shown(label),
                own_vote=_shown(mine),
                rewards=rewards,
                completions=[
                    {"text": c.text, "answer": c.answer, "tokens": len(c.token_ids)} for c in problem.completions
                ],
            )


def _shown(vote: Vote | None) -> dict[str, Any] | None:
    if vote is None:
        return None
    return {"status": vote.status, "answer": vote.answer, "share": vote.share}


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
