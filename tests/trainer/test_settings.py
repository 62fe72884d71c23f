from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corl_trainer.settings import TrainerSettings, grpo_arguments, grpo_config
from corl_trainer.stops import SettingsError

from corl.presets import preset
from tests.trainer.stack import cohort

JUDGES = {"llama": "http://127.0.0.1:1", "qwen": "http://127.0.0.1:2"}


def build(tmp_path: Path, member: str = "llama", judges: dict[str, str] | None = None, **overrides: Any) -> Any:
    of = cohort(**overrides)
    return TrainerSettings.build(of, member, run="r", run_dir=tmp_path, judges=JUDGES if judges is None else judges)


def arguments(settings: TrainerSettings, world_size: int = 1, on_cpu: bool = True) -> dict[str, Any]:
    return grpo_arguments(settings, world_size=world_size, on_cpu=on_cpu)


def test_member_overrides_go_before_the_cohorts(tmp_path: Path) -> None:
    settings = build(
        tmp_path, training__learning_rate=1e-3, members__llama__training={"learning_rate": 2e-3, "save_every": 7}
    )
    assert (settings.training.save_every, arguments(settings)["learning_rate"]) == (7, 2e-3)
    assert arguments(build(tmp_path, "qwen", training__learning_rate=1e-3))["learning_rate"] == 1e-3


def test_seeds_differ_by_member_and_the_order_of_problems_does_not(tmp_path: Path) -> None:
    a, b = arguments(build(tmp_path)), arguments(build(tmp_path, "qwen"))
    assert a["seed"] != b["seed"]
    assert a["data_seed"] == b["data_seed"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"training__learning_rat": 1}, "training.learning_rat .* did you mean 'learning_rate'"),
        ({"training__stepz": 1}, "did you mean 'steps'"),
        ({"training__max_steps": 9}, "training.max_steps is 9: set training.steps"),
        ({"training__num_generations": 9}, "set rollouts.n"),
        ({"training__shuffle_dataset": True}, "must be False: the order of problems"),
        ({"training__top_p": 0.9}, "biases the importance ratio"),
        ({"training__vllm_mode": "colocate"}, "has no effect"),
        ({"training__gradient_accumulation_steps": 3}, "their product must be 16"),
        ({"training__ddp_timeout": 30}, "the other ranks would give up"),
        ({"rollouts__ahead": 1, "training__vllm_importance_sampling_correction": False}, "rollouts.ahead is 1"),
        ({"vote__wait_s": 60}, "vote.wait_s is 60 s and training.service_deadline_s 60 s"),
        ({"members__llama__frozen": True}, "is frozen"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_remedy(
    tmp_path: Path, override: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        arguments(build(tmp_path, **override))


def test_unknown_members_and_missing_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--member 'nobody'"):
        build(tmp_path, "nobody")
    with pytest.raises(SettingsError, match="pass --judge qwen=URL"):
        build(tmp_path, judges={"llama": "http://127.0.0.1:1"})
    with pytest.raises(SettingsError, match="--judge names 'x'"):
        build(tmp_path, judges=JUDGES | {"x": "http://127.0.0.1:1"})
    assert build(tmp_path, judges={"llama": "http://127.0.0.1:1"}, reward="self").teachers == []


@pytest.mark.parametrize(
    ("given", "world", "on_cpu", "split"),
    [
        ({}, 1, True, (16, 1)),
        ({}, 2, True, (8, 1)),
        ({}, 1, False, (8, 2)),
        ({"per_device_train_batch_size": 2}, 2, True, (2, 4)),
        ({"gradient_accumulation_steps": 4}, 1, False, (4, 4)),
    ],
)
def test_a_generation_batch_is_one_step(
    tmp_path: Path, given: dict[str, int], world: int, on_cpu: bool, split: tuple[int, int]
) -> None:
    settings = build(tmp_path, **{f"training__{name}": value for name, value in given.items()})
    found = arguments(settings, world, on_cpu)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == split
    assert found["steps_per_generation"] == found["gradient_accumulation_steps"]


def test_completions_that_the_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"a step has 16 completions .* 3 processes"):
        arguments(build(tmp_path), world_size=3)


def test_every_field_of_the_paper_preset_is_one_that_trl_takes(tmp_path: Path) -> None:
    wanted = preset("paper")["training"]
    settings = build(tmp_path, preset="paper", training__device="cpu", rollouts__n=8, rollouts__problems_per_step=16)
    config = grpo_config(settings)
    for name in ("loss_type", "beta", "epsilon", "adam_beta2", "vllm_importance_sampling_mode", "scale_rewards"):
        assert getattr(config, name) == wanted[name]
    assert (config.warmup_steps, config.lr_scheduler_type) == (0, "constant")  # the example's own, over the preset's
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (2, 64)
    assert config.bf16
    assert (config.num_iterations, config.shuffle_dataset, config.use_vllm) == (1, False, False)


def test_the_choice_of_trl_for_what_is_not_given(tmp_path: Path) -> None:
    config = grpo_config(build(tmp_path, training__device="cpu"))
    assert (config.loss_type, config.top_p, config.top_k) == ("dapo", 1.0, 0)
    assert not config.bf16
    assert not config.gradient_checkpointing
    assert config.ddp_timeout >= 60 + 600
