"""A real `GRPOTrainer` run on a nano model whose reward is a real judge over another nano model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from corl_judge.engines import make_engine
from corl_judge.settings import Settings

from corl.adapters import trl as adapter
from corl.wire import Policy
from tests.trainer.stack import MODELS, serving

PROBLEMS = MODELS.parent / "problems.jsonl"


@pytest.mark.parametrize("kind", [adapter.PeerReward, adapter.AsyncPeerReward])
def test_two_steps_with_a_judge_as_the_reward(kind: type[Any], redis_url: str, tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    given: list[list[float | None]] = []

    class Watched(kind):  # type: ignore[misc]
        def settle(self, scored: Any) -> list[float | None]:
            given.append(super().settle(scored))
            return given[-1]

    with PROBLEMS.open() as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(8), strict=False)]
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": r["problem"]}], "problem_id": r["problem_id"]} for r in rows]
    )
    judge = Settings(
        member=f"trl-{kind.__name__}",
        model=str(MODELS / "qwen"),
        engine="transformers",
        frozen=True,
        redis=redis_url,
        vote_max_tokens=8,
    )
    with serving(judge, make_engine("transformers", str(MODELS / "qwen"))) as url:
        trainer = GRPOTrainer(
            model=str(MODELS / "llama"),
            reward_funcs=Watched(url, policy=Policy(samples=4), deadline_s=120),
            train_dataset=data,
            args=GRPOConfig(
                output_dir=str(tmp_path),
                max_steps=2,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=8,
                learning_rate=1e-4,
                use_cpu=True,
                bf16=False,
                report_to=[],
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()
        metrics = httpx.get(f"{url}/metrics").text
    assert trainer.state.global_step == 2
    assert [len(rewards) for rewards in given] == [8, 8]
    assert any(reward is not None for rewards in given for reward in rewards), "no problem had a label"
    # One request a step: the whole batch.
    assert 'corl_requests_total{method="POST",route="/v1/scores",status="200"} 2.0' in metrics
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry, rewards in zip(logged, given, strict=True):
        labeled = [reward for reward in rewards if reward is not None]
        assert entry["peer_reward/labeled"] == pytest.approx(len(labeled) / 8)
        mean = entry["rewards/peer_reward/mean"]
        assert mean == pytest.approx(sum(labeled) / len(labeled)) if labeled else math.isnan(mean)
        assert math.isfinite(entry["loss"])
