"""`compute_score`, called as verl's reward managers call it: by keyword, a sample at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from corl_judge.engines.base import EngineError

from corl.adapters import RewardFailed, Unlabeled
from corl.adapters.verl import compute_score, compute_score_sync
from tests.adapters.conftest import sums
from tests.judge.harness import Judges
from tests.scripted import ScriptedEngine


def sample(question: Any, solution: str, **info: Any) -> dict[str, Any]:
    return {
        "data_source": "gsm8k",
        "solution_str": solution,
        "ground_truth": "not looked at",
        "extra_info": {"index": 0, "question": question, "num_turns": 2, "rollout_reward_scores": {}, **info},
    }


async def test_every_sample_has_the_same_numeric_keys(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    chat = np.array([{"role": "user", "content": "1 + 2"}], dtype=object)
    samples = [
        sample("1 + 2", "\\boxed{3}"),
        sample("1 + 2", "\\boxed{5}", problem_id="p"),
        sample("1 + 2", "no answer"),
        sample("split 1 + 2", "\\boxed{3}"),
        sample(chat, "\\boxed{3}"),
    ]
    more = {"judge": judge.url, "reward_router_address": "ignored:1", "reward_model_tokenizer": None}
    scores = await asyncio.gather(*(compute_score(**s, **more) for s in samples))
    assert [score["score"] for score in scores] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [score["labeled"] for score in scores] == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert [score["vote_share"] for score in scores] == [0.75, 0.75, 0.75, 0.5, 0.75]
    for score in scores:
        assert list(score) == ["score", "labeled", "vote_share"]
        assert all(type(value) is float for value in score.values())
    in_threads = [await asyncio.to_thread(compute_score_sync, **s, **more) for s in samples]
    assert in_threads == scores


async def test_no_label_or_no_verdict(judges: Judges) -> None:
    engine = ScriptedEngine(sums, fail=lambda text: EngineError("broken") if "9" in text else None)
    judge = await judges.start(engine)
    with pytest.raises(Unlabeled, match=r"'tie' with a share of 0.50"):
        await compute_score(**sample("split 1 + 2", "\\boxed{3}"), judge=judge.url, on_unlabeled="error")
    with pytest.raises(RewardFailed, match="broken"):
        await compute_score(**sample("9", "\\boxed{9}"), judge=judge.url)
    with pytest.raises(ValueError, match=r"extra_info has no 'prompt', only \['index', 'num_turns', 'question'"):
        await compute_score(**sample("1 + 2", "\\boxed{3}"), judge=judge.url, prompt_key="prompt")
