"""A judge over a real model: what the routes answer is what the model says, before and after new weights."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from corl_judge.engines import make_engine
from transformers import AutoModelForCausalLM

from corl.wire import WeightsTag
from tests.judge.harness import Judges, RunningJudge, item, scores
from tests.tiny_models import make_qwen, perturbed, publish, stored_tensors


@cache
def model_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def reference(folder: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """Log-probabilities of the tokens after the prompt, by the plain forward pass of a model loaded from a folder."""
    with torch.no_grad():
        logits = model_of(folder)(torch.tensor([prompt + tokens])).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    return [float(logprobs[i, token]) for i, token in enumerate(tokens)]


async def rollouts(judge: RunningJudge, step: int, **more: Any) -> dict[str, Any]:
    problems = [{"problem_id": f"p{i}", "prompt": f"What is {i} plus {i}?"} for i in range(3)]
    body = {"problems": problems, "n": 4, "sampling": {"max_tokens": 12}, "run": "r", "step": step, **more}
    return await judge.post("/v1/rollouts", body)


def agree(folder: Path, answer: dict[str, Any]) -> None:
    for problem in answer["problems"]:
        for completion in problem["completions"]:
            expected = reference(folder, problem["prompt_token_ids"], completion["token_ids"])
            assert completion["logprobs"] == pytest.approx(expected, abs=2e-4)


async def test_rollouts_are_the_models_own_before_and_after_a_reload_under_load(judges: Judges, tmp_path: Path) -> None:
    base = make_qwen(tmp_path / "base")
    weights = tmp_path / "weights"
    snapshot = publish(weights, perturbed(stored_tensors(base), seed=1))
    engine = make_engine("transformers", str(base), options={"max_num_seqs": 16})
    judge = await judges.start(engine, member=snapshot.manifest.member, weights=weights)  # type: ignore[arg-type]
    first = await rollouts(judge, 0)
    agree(base, first)
    assert first["weights"]["version"] == 0

    update = {
        "run": snapshot.manifest.run,
        "incarnation": snapshot.manifest.incarnation,
        "version": 1,
        "digest": snapshot.manifest.state_digest,
        "uri": str(snapshot.folder),
    }
    under_load = [asyncio.create_task(rollouts(judge, step)) for step in range(1, 6)]
    await judge.put("/v1/weights", update, expect=202)
    second = await rollouts(judge, 9, min_version=1)
    changed = tmp_path / "changed"
    changed.mkdir()
    for name in ("config.json", "generation_config.json"):
        if (base / name).is_file():
            (changed / name).write_bytes((base / name).read_bytes())
    [file] = snapshot.files()
    (changed / "model.safetensors").write_bytes(file.read_bytes())
    agree(changed, second)
    tag = WeightsTag(incarnation=update["incarnation"], version=1, digest=update["digest"])
    assert second["weights"] == tag.model_dump()
    for answer in await asyncio.gather(*under_load):
        for problem in answer["problems"]:
            folder = base if problem["weights"]["version"] == 0 else changed
            agree(folder, {"problems": [problem]})

    [scored] = (await judge.post("/v1/scores", scores(item("p0", "\\boxed{4}"), run="r", step=9)))["items"]
    assert scored["vote"]["source"] == "rollout"
    assert scored["vote"]["total"] == 4
