"""Figures that must equal TRL's own, or their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from corl_trainer import member as member_module
from corl_trainer.generation import merged_parameters, tied_names
from corl_trainer.grpo import MemberTrainer
from corl_trainer.intrinsic import certainty, self_certainty
from corl_trainer.schedule import Schedule
from corl_trainer.settings import grpo_config
from corl_trainer.stops import ExitCode
from corl_trainer.trl_import import GRPOTrainer
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.nn.functional import kl_div, log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

from corl.cohort import load_problems
from corl.rewards import advantages, rewards
from corl.votes import tally
from corl.wire import RolloutsRequest, Sampling
from tests.trainer.conftest import Lab
from tests.trainer.stack import MODELS, cohort, settings


def spy_on(monkeypatch: pytest.MonkeyPatch, cls: Any, name: str, see: Callable[..., None]) -> None:
    original = getattr(cls, name)

    def spy(self: Any, *args: Any, **more: Any) -> Any:
        result = original(self, *args, **more)
        see(self, result, *args, **more)
        return result

    monkeypatch.setattr(cls, name, spy)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_and_loss(lab: Lab, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With unlabeled problems among them: advantages as `corl.rewards` defines them, and the loss of GRPO with the
    importance ratio of the sampler's log-probabilities, cut at 3, as TRL documents it."""
    given: list[list[float | None]] = []
    batches: list[dict[str, Any]] = []
    losses: list[tuple[dict[str, Any], float, list[torch.Tensor]]] = []
    spy_on(monkeypatch, member_module.VoteReward, "__call__", lambda self, result, **_: given.append(result))
    spy_on(
        monkeypatch, MemberTrainer, "_generate_and_score_completions", lambda self, result, *_: batches.append(result)
    )

    def see_loss(self: Any, loss: torch.Tensor, model: Any, inputs: dict[str, Any]) -> None:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits[:, inputs["prompt_ids"].shape[1] - 1 : -1]
        logps = log_softmax(logits.float(), -1).gather(-1, inputs["completion_ids"][..., None]).squeeze(-1)
        losses.append((inputs, loss.item(), [logps]))

    spy_on(monkeypatch, MemberTrainer, "_compute_loss", see_loss)
    assert lab.train(training__scale_rewards=scale) is ExitCode.DONE
    assert len(given) == len(batches) == len(losses) == 2
    assert any(reward is None for reward in given[0] + given[1])
    for flat, batch in zip(given, batches, strict=True):
        expected = [a or 0.0 for a in advantages(flat, scale, group_size=4)]  # type: ignore[arg-type]
        assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
    for inputs, loss, (logps,) in losses:
        mask = inputs["completion_mask"].float()
        ratio = torch.exp(logps - inputs["sampling_per_token_logps"]).clamp(max=3.0)
        expected_loss = -(inputs["advantages"][:, None] * ratio * mask).sum() / mask.sum()
        assert loss == pytest.approx(expected_loss.item(), abs=1e-4)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_run_is_trls_own_bit_for_bit(lab: Lab, tmp_path: Any) -> None:
    """The same rollouts and rewards given to a plain GRPOTrainer leave the same weights."""
    plain: dict[str, Any] = {"training__vllm_importance_sampling_correction": False, "training__learning_rate": 1e-3}
    assert lab.train(**plain) is ExitCode.DONE
    ours = load_file(lab.root / "run/llama/final/model.safetensors")

    of = cohort(training__steps=2, problems__heldout=None, **plain)
    problems = load_problems(of)
    schedule = Schedule(problems.ids, of.training.data_seed, 4)
    config = grpo_config(settings(of, "llama", tmp_path / "plain", lab.urls))
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "llama", padding_side="left", truncation_side="left")
    rows = [
        {
            "slot": slot,
            "problem_id": problem,
            "prompt": [m.model_dump() for m in of.prompt.messages(problems.text(problem))],
        }
        for slot, problem in schedule.rows(2)
    ]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        step = trainer.state.global_step
        request = RolloutsRequest(
            problems=[{"problem_id": p, "prompt": "x"} for p in schedule.problems(step)],
            n=4,
            run="run",
            step=step,
            sampling=Sampling(max_tokens=8),
        )
        found = [c for problem in lab.llama.rollouts(request).problems for c in problem.completions]
        ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True)["input_ids"]
        return {
            "prompt_ids": ids,
            "completion_ids": [c.token_ids for c in found],
            "logprobs": [c.logprobs for c in found],
        }

    def reward(problem_id: list[str], trainer_state: Any, **_: Any) -> list[float | None]:
        step = trainer_state.global_step
        flat: list[float | None] = []
        for problem in problem_id[::4]:
            vote = tally([lab.qwen.answers(problem, step, i) for i in range(4)])
            flat += rewards([lab.llama.answers(problem, step, i) for i in range(4)], vote)
        return flat

    trainer = GRPOTrainer(
        model=str(MODELS / "llama"),
        reward_funcs=[reward],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter.detach(), ours[name]), name


@pytest.mark.parametrize("reward", ["entropy", "certainty"])
def test_intrinsic_rewards_equal_their_definitions(lab: Lab, reward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[float], dict[str, Any], torch.Tensor]] = []

    def see(self: MemberTrainer, output: dict[str, Any], inputs: Any) -> None:
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
        with torch.no_grad():
            logits = self.model(input_ids=ids, attention_mask=mask).logits
        seen.append((list(self.intrinsic_rewards), output, logits[:, output["prompt_ids"].shape[1] - 1 : -1]))

    spy_on(monkeypatch, MemberTrainer, "_generate_and_score_completions", see)
    lab.llama.answers = lambda problem, step, i: None if i == 0 else "1" * (i + 1)  # lengths differ: padding matters
    temperature = 0.7
    assert lab.train(reward=reward, rollouts__temperature=temperature) is ExitCode.DONE
    for found, output, logits in seen:
        logps = log_softmax(logits.double() / temperature, -1)
        if reward == "entropy":
            token = (logps.exp() * logps).sum(-1)  # minus the entropy
        else:
            uniform = torch.full_like(logps, 1.0 / logps.shape[-1])
            token = kl_div(logps, uniform, reduction="none").sum(-1)
        mask = output["completion_mask"].double()
        expected = (token * mask).sum(-1) / mask.sum(-1)
        assert found == pytest.approx(expected.tolist(), abs=1e-5)
        assert len(set(found)) > 4, "completions differ"


def test_certainty_of_what_is_known_in_closed_form() -> None:
    assert certainty(torch.zeros(5)).item() == pytest.approx(0.0, abs=1e-6)
    logits = torch.log(torch.tensor([0.5, 0.25, 0.25]))
    expected = sum(math.log(1 / 3 / p) / 3 for p in (0.5, 0.25, 0.25))
    assert certainty(logits).item() == pytest.approx(expected, abs=1e-6)
    assert certainty(logits + 7.0).item() == pytest.approx(expected, abs=1e-6)


def test_certainty_does_not_depend_on_how_the_batch_is_cut() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODELS / "qwen").eval()
    ids = torch.randint(0, model.config.vocab_size, (5, 9), generator=torch.Generator().manual_seed(0))
    found = [
        self_certainty(model, ids, torch.ones_like(ids), 4, temperature=1.0, batch_size=size) for size in (1, 2, 5)
    ]
    assert found[0].shape == (5, 4)
    assert torch.allclose(found[0], found[1], atol=1e-5)
    assert torch.allclose(found[0], found[2], atol=1e-5)


@pytest.mark.parametrize("member", ["llama", "qwen"])
def test_adapters_are_merged_without_touching_the_model(member: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODELS / member)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    found = {name: tensor.clone() for name, tensor in merged_parameters(adapted)}
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())
    stored = load_file(MODELS / member / "model.safetensors")
    assert found.keys() == stored.keys(), "the names of the base checkpoint"
    assert tied_names(adapted) == ({"lm_head.weight": "model.embed_tokens.weight"} if member == "qwen" else {})
    merged = dict(adapted.merge_and_unload().named_parameters())
    changed = [name for name, tensor in found.items() if not torch.equal(tensor, stored[name])]
    assert all(torch.equal(found[name], merged[name]) for name in found)
    assert changed
    assert all("_proj" in name for name in changed)
