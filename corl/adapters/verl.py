"""`compute_score` for verl: named by `reward.custom_reward_function.path` and `.name`.

    reward.custom_reward_function.path=my_reward.py
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.judge=http://127.0.0.1:8101

with `from corl.adapters.verl import compute_score` in `my_reward.py`. verl calls it once a sample; samples of one
problem are one vote all the same, since the judge files it. The problem's text is `extra_info[prompt_key]`.

verl takes its list of metrics from the first sample and reads it from all others: the keys are the same for every
sample, and all are numbers. It has no word for a sample without a label, so `on_unlabeled` is `zero` (and `labeled` is
then 0.0) or `error`. Its `rate_limited` reward manager turns an exception into 0.0: use `naive` or `dapo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypedDict

from corl.adapters.batches import Scored
from corl.adapters.peer import AsyncPeerReward, OnUnlabeled, PeerReward, Unlabeled
from corl.adapters.texts import Conversational
from corl.wire import Policy, Task

__all__ = ["Score", "compute_score", "compute_score_sync"]


class Score(TypedDict):
    """`score` is the reward; `labeled` 1.0 or 0.0; `vote_share` that of the judge's winning answer."""

    score: float
    labeled: float
    vote_share: float


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    judge: str,
    api_key: str | None = None,
    prompt_key: str = "question",
    samples: int = 8,
    threshold: float = 0.0,
    task: Task = "math",
    on_unlabeled: OnUnlabeled = "zero",
    deadline_s: float = 600.0,
    **_: Any,
) -> Score:
    """One sample's reward by the judge's vote; `ground_truth` is not looked at.

    Raises:
        ValueError: `extra_info` has no problem text under `prompt_key`.
        JudgeError, RewardFailed: the judge gave no verdict before the deadline.
        Unlabeled: there is no label and `on_unlabeled` is `error`.
    """
    prompt, problem_id = _problem(extra_info, prompt_key)
    reward = _asynchronous(judge, api_key, samples, threshold, task, deadline_s)
    scored = await reward.score([prompt], [solution_str], problem_id=problem_id)
    return _score(scored, judge, on_unlabeled)


def compute_score_sync(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    judge: str,
    api_key: str | None = None,
    prompt_key: str = "question",
    samples: int = 8,
    threshold: float = 0.0,
    task: Task = "math",
    on_unlabeled: OnUnlabeled = "zero",
    deadline_s: float = 600.0,
    **_: Any,
) -> Score:
    """`compute_score` for reward managers that call in processes (`remote`) or threads. Raises the same."""
    prompt, problem_id = _problem(extra_info, prompt_key)
    reward = _synchronous(judge, api_key, samples, threshold, task, deadline_s)
    scored = reward.score([prompt], [solution_str], problem_id=problem_id)
    return _score(scored, judge, on_unlabeled)


@lru_cache(maxsize=32)
def _asynchronous(
    judge: str, api_key: str | None, samples: int, threshold: float, task: Task, deadline_s: float
) -> AsyncPeerReward:
    policy = Policy(samples=samples, threshold=threshold)
    return AsyncPeerReward(judge, api_key=api_key, policy=policy, task=task, deadline_s=deadline_s)


@lru_cache(maxsize=32)
def _synchronous(
    judge: str, api_key: str | None, samples: int, threshold: float, task: Task, deadline_s: float
) -> PeerReward:
    policy = Policy(samples=samples, threshold=threshold)
    return PeerReward(judge, api_key=api_key, policy=policy, task=task, deadline_s=deadline_s)


def _problem(extra_info: Mapping[str, Any] | None, prompt_key: str) -> tuple[Conversational, list[Any] | None]:
    info = {} if extra_info is None else extra_info
    prompt = info.get(prompt_key)
    if prompt is None:
        raise ValueError(
            f"extra_info has no {prompt_key!r}, only {sorted(map(str, info))}: put the problem's text or chat messages "
            "into the dataset's extra_info, or name the key with reward_kwargs.prompt_key"
        )
    # Parquet gives arrays where there were lists.
    given: Conversational = prompt if isinstance(prompt, str) else list(prompt)
    return given, None if info.get("problem_id") is None else [info["problem_id"]]


def _score(scored: Scored, judge: str, on_unlabeled: OnUnlabeled) -> Score:
    reward, vote = scored.rewards[0], scored.votes[0]
    if reward is None and on_unlabeled == "error":
        raise Unlabeled(f"no label: the vote of the judge is {vote.status!r} with a share of {vote.share:.2f}")
    return Score(
        score=0.0 if reward is None else reward,
        labeled=0.0 if reward is None else 1.0,
        vote_share=vote.share,
    )
