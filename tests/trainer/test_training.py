"""One member trained in this process against scripted judges over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from corl_trainer import member as member_module
from corl_trainer.schedule import Schedule
from corl_trainer.settings import TrainerSettings
from corl_trainer.stops import ExitCode
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from corl.cohort import load_problems
from corl.rewards import rewards as against
from corl.votes import tally
from corl.weights import checkpoint_digest, open_snapshot, verify_digests
from tests.trainer.conftest import Lab
from tests.trainer.fake_judge import status
from tests.trainer.stack import MODELS, cohort

Labs = Callable[[], AbstractContextManager[Lab]]


def test_a_run_from_start_to_final_model(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    heldout = cohort().problems.heldout.model_dump(exclude_unset=True)
    heldout["path"] = str(heldout["path"])
    lab.llama.answers = lambda problem, step, i: None if i == 0 and step == 1 else f"{(step + i) % 3:03d}"
    code = lab.train(
        training__steps=3, training__sample_completions_every=2, training__eval_every=2, problems__heldout=heldout
    )
    assert code is ExitCode.DONE

    # The weights of a step are served before anything is asked of them, and every version is pushed once, eagerly.
    assert [u.version for u in lab.llama.pushed] == [0, 1, 2, 3]
    assert lab.digests()[0] == checkpoint_digest(MODELS / "llama"), "version 0 is what the judge has loaded already"
    routes = [route for route, _ in lab.llama.asked if route in ("weights", "rollouts")]
    assert routes[:3] == ["weights", "rollouts", "rollouts"]  # version 0, its evaluation, step 0

    # Rollouts carry the identity of the step, and the trainer's own tokens.
    train = [body for body in lab.llama.requests("rollouts") if body["purpose"] == "train"]
    of = cohort()
    schedule = Schedule(load_problems(of).ids, of.training.data_seed, 4)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "llama")
    for step, body in enumerate(train):
        assert (body["step"], body["run"], body["n"], body["min_version"]) == (step, "run", 4, step)
        assert body["incarnation"] == 1
        assert [p["problem_id"] for p in body["problems"]] == schedule.problems(step)
        text = load_problems(of).text(body["problems"][0]["problem_id"])
        chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        assert body["problems"][0]["prompt"] == chat["input_ids"]

    # Scores are asked of the teacher for the same problems, with texts, never token ids or answers.
    for step, body in enumerate(lab.qwen.requests("scores")):
        assert (body["step"], body["run"]) == (step, "run")
        assert [item["problem_id"] for item in body["items"]] == schedule.problems(step)
        assert body["policy"]["samples"] == 4
        assert body["items"][0]["prompt"][0]["role"] == "user"

    # Evaluation is asked with its own purpose, at the start, every 2 steps and at the end.
    evaluations = [body for body in lab.llama.requests("rollouts") if body["purpose"] == "eval"]
    assert [body["step"] for body in evaluations] == [0, 2, 3]
    log = lab.log()
    assert [row["step"] for row in log.evals] == [0, 2, 3]

    # Records: every step, its seconds by phase, its votes; a line a step for the eye.
    assert [row["step"] for row in log.steps] == [1, 2, 3]
    assert log.end is not None
    assert log.end["code"] == 0
    for row in log.steps:
        seconds = row["seconds"]
        parts = sum(value for name, value in seconds.items() if name != "step")
        assert parts == pytest.approx(seconds["step"], rel=0.01)
        assert 0.0 <= row["votes/labeled"] <= 1.0
        # The hand-over in parts, and memory: torch counts no device's here.
        handed_over = row["publish/write_seconds"] + row["publish/reload_seconds"]
        assert 0.0 < handed_over <= seconds["publish"]
        assert row["publish/bytes"] == published_bytes(lab.root / "run/weights")
        assert row["memory/host_peak"] > 100e6
        assert "memory/device_peak" not in row
    assert log.steps[1]["rollouts/answered"] == 0.75
    assert log.steps[0]["votes/fresh"] == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("llama 1/3", "llama 2/3", "llama 3/3")) and "labeled" in line for line in lines) == 3

    # Samples of completions every 2 steps, with what they were rewarded by.
    samples = [json.loads(line) for line in (lab.root / "run/llama/completions.jsonl").read_text().splitlines()]
    assert sorted({row["step"] for row in samples}) == [0, 2]
    assert len(samples) == 8
    assert len(samples[0]["completions"]) == 4

    # The final model is a plain folder with exactly the weights that were served last.
    final = lab.root / "run/llama/final"
    assert checkpoint_digest(final) == lab.digests()[3]
    model = AutoModelForCausalLM.from_pretrained(final)
    assert model.num_parameters() == AutoModelForCausalLM.from_pretrained(MODELS / "llama").num_parameters()
    assert AutoTokenizer.from_pretrained(final).chat_template

    # Published folders are whole; only the last ones are kept.
    root = lab.root / "run/weights"
    folders = sorted(path for path in (root / "run/llama").iterdir())
    assert [path.name for path in folders] == ["v00000002-i0001", "v00000003-i0001"]
    for folder in folders:
        verify_digests(open_snapshot(str(folder), root))

    # A finished run that is started again is done at once.
    pushed = len(lab.llama.pushed)
    assert lab.train(training__steps=3) is ExitCode.DONE
    assert len(lab.llama.pushed) == pushed


def published_bytes(root: Path) -> int:
    """Of one version; all have the same tensors."""
    newest = max(root.glob("run/llama/v*"))
    return sum(path.stat().st_size for path in newest.glob("*.safetensors"))


def test_rewards_are_the_teachers_verdict_on_each_completion(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], list[float | None]]] = []
    original = member_module.VoteReward.__call__

    def spy(self: Any, completion_ids: Any, problem_id: Any, **more: Any) -> list[float | None]:
        given = original(self, completion_ids, problem_id, **more)
        seen.append((list(problem_id), given))
        return given

    monkeypatch.setattr(member_module.VoteReward, "__call__", spy)
    assert lab.train() is ExitCode.DONE
    assert len(seen) == 2
    for step, (problems, given) in enumerate(seen):
        expected: list[float | None] = []
        for problem in problems[::4]:
            vote = tally([lab.qwen.answers(problem, step, i) for i in range(4)])
            expected += against([lab.llama.answers(problem, step, i) for i in range(4)], vote)
        assert given == expected
    assert any(reward is None for _, given in seen for reward in given), "some problem is unlabeled"
    assert any(reward for _, given in seen for reward in given), "some completion is rewarded"


@pytest.mark.parametrize("reward", ["self", "collective", "truth", "entropy", "certainty"])
def test_every_reward_source(lab: Lab, reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = []
    build = TrainerSettings.build

    def spy(of: Any, *args: Any, **more: Any) -> TrainerSettings:
        problems.append(load_problems(of))
        return build(of, *args, **more)

    monkeypatch.setattr(TrainerSettings, "build", spy)
    assert lab.train(reward=reward) is ExitCode.DONE
    (found,) = problems
    assert (found.answers is not None) == (reward == "truth"), "no answer of a training problem in the process"
    log = lab.log()
    last = log.steps[-1]
    assert f"rewards/{reward}/mean" in last
    assert ("accuracy" in last) == (reward == "truth")
    asked = lab.qwen.requests("scores")
    assert bool(asked) == (reward == "collective")
    if reward == "collective":
        assert all(body["histogram"] for body in asked)
    if reward == "entropy":
        assert last["reward"] == pytest.approx(last["reward/mean"], abs=1e-6)
    if reward != "truth":  # the scripted answers are never right
        assert lab.digests()[2] != lab.digests()[0]


def test_a_step_without_any_label_trains_on(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.qwen.answers = lambda problem, step, i: None if step == 0 else "001"
    assert lab.train() is ExitCode.DONE
    first, second = lab.log().steps
    assert (first["votes/labeled"], second["votes/labeled"]) == (0.0, 1.0)
    assert "reward/mean" not in first
    assert first["grad_norm"] == 0.0
    assert lab.digests()[1] == lab.digests()[0], "no label, no change"
    assert lab.digests()[2] != lab.digests()[1]
    assert "reward functions returned None" not in caplog.text


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
def test_stopped_and_resumed_is_as_undisturbed_bit_for_bit(make_lab: Labs, lora: Any) -> None:
    more: dict[str, Any] = {"training__steps": 5, "training__service_deadline_s": 3, "training__lora": lora}
    if lora:
        more["training__learning_rate"] = 1e-3
    with make_lab() as lab:
        assert lab.train(**more) is ExitCode.DONE
        undisturbed = lab.digests()
        final = checkpoint_digest(lab.root / "run/llama/final")
    with make_lab() as lab:
        lab.qwen.faults["scores"] = [lambda body: body] * 3 + [status(503)] * 100
        assert lab.train(**more) is ExitCode.SERVICE_GONE  # in the middle of step 3, whose checkpoint it takes
        lab.qwen.faults["scores"].clear()
        assert lab.train(**more) is ExitCode.DONE
        assert lab.digests() == undisturbed
        assert checkpoint_digest(lab.root / "run/llama/final") == final
        log = lab.log()
        assert [row["step"] for row in log.steps] == [1, 2, 3, 4, 5]
        assert [row["step"] for row in log.starts] == [0, 3]
        assert [row["incarnation"] for row in log.steps] == [1, 1, 1, 2, 2]
        # Back to an earlier common step, as when the whole cohort is resumed; what was later is gone.
        assert lab.train(resume_step=2, **more) is ExitCode.DONE
        assert lab.digests() == undisturbed


def test_a_member_trains_on_its_own_view_of_the_same_problems(lab: Lab) -> None:
    assert lab.train(members__llama__view="swapped", training__steps=1) is ExitCode.DONE
    of = cohort()
    problems = load_problems(of)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "llama")
    (asked,), (scored,) = lab.llama.requests("rollouts"), lab.qwen.requests("scores")
    ids = Schedule(problems.ids, of.training.data_seed, 4).problems(0)
    assert [p["problem_id"] for p in asked["problems"]] == [i["problem_id"] for i in scored["items"]] == ids
    for problem, item in zip(asked["problems"], scored["items"], strict=True):
        text = problems.text(problem["problem_id"], "swapped")
        assert text != problems.text(problem["problem_id"])
        assert text in tokenizer.decode(problem["prompt"])
        assert item["prompt"] == [{"role": "user", "content": text}]


def test_bfloat16_is_for_the_passes_and_the_weights_stay_exact(lab: Lab) -> None:
    """Updates at usual learning rates are below bfloat16's resolution: the master weights are float32."""
    more: dict[str, Any] = {"training__dtype": "bfloat16", "training__gradient_checkpointing": True}
    assert lab.train(**more, training__learning_rate=1e-6) is ExitCode.DONE
    digests = lab.digests()
    assert len(set(digests.values())) == 3, "every update is kept, however small"
    final = load_file(lab.root / "run/llama/final/model.safetensors")
    assert {tensor.dtype for tensor in final.values()} == {torch.float32}


def test_rollouts_one_step_ahead(lab: Lab) -> None:
    assert lab.train(training__steps=3, rollouts__ahead=1) is ExitCode.DONE
    order = [
        (route, (body.get("request") or body).get("step", body.get("version")))
        for route, body in lab.llama.asked
        if route in ("rollouts", "jobs", "job", "weights")
    ]
    # Step t + 1 is queued with the weights of step t before these are updated, and collected after.
    assert order == [
        ("weights", 0),
        ("rollouts", 0),
        ("jobs", 1),
        ("weights", 1),
        ("job", None),
        ("jobs", 2),
        ("weights", 2),
        ("job", None),
        ("weights", 3),
    ]
    assert [body["request"]["min_version"] for body in lab.llama.requests("jobs")] == [0, 1]
    log = lab.log()
    assert [row["rollouts/lag"] for row in log.steps] == [0.0, 1.0, 1.0]
    assert all("sampling/importance_sampling_ratio/clipped" in row for row in log.steps)
    assert [body["step"] for body in lab.qwen.requests("scores")] == [0, 1, 2]


def test_rollouts_that_were_queued_and_lost_are_asked_for_again(lab: Lab) -> None:
    lab.llama.faults["jobs"] = [lambda body: body | {"id": "lost"}]
    assert lab.train(training__steps=3, rollouts__ahead=1) is ExitCode.DONE
    assert [body["step"] for body in lab.llama.requests("rollouts")] == [0, 1]
    assert [row["step"] for row in lab.log().steps] == [1, 2, 3]
