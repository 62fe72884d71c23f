"""What is found before anything is started."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.stops import SettingsError
from corl_trainer.trl_fields import LOSSES, check_values, grpo_fields

from tests.launch.conftest import COHORT, Bench


def test_the_fields_are_those_of_trl() -> None:
    from corl_trainer.trl_import import GRPOConfig

    assert set(grpo_fields()) == {field.name for field in dataclasses.fields(GRPOConfig)}


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ("learning_rat: 1e-6", "did you mean 'learning_rate'?"),
        ("max_steps: 5", "set training.steps instead"),
        ("per_device_train_batch_size: 3", "their product must be 16"),
        ("lr_scheduler_type: constnat", "did you mean 'constant'?"),
    ],
)
def test_a_run_with_wrong_settings_starts_nothing(bench: Bench, training: str, says: str) -> None:
    bench.write(COHORT.replace("training: {", f"training: {{{training}, "))
    run = bench.run()
    assert run.wait() == 2
    assert says in run.err
    assert bench.started() == []
    assert not run.folder.path.exists()


def test_another_members_own_settings_are_looked_at_too(bench: Bench) -> None:
    bench.write(COHORT.replace("models/b,", "models/b, training: {learning_rat: 1},"))
    run = bench.run()
    assert run.wait() == 2
    assert "training.learning_rat is neither" in run.err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"learning_rate": "1e-4x"}, "training.learning_rate is '1e-4x': write a number"),
        ({"learning_rate": True}, "write a number"),
        ({"learning_rate": -1.0}, "write 0 or more"),
        ({"learning_rate": math.nan}, "write a finite number"),
        ({"warmup_steps": -3}, "write 0 or more"),
        ({"beta": "high"}, "training.beta is 'high': write a number"),
        ({"num_iterations": 1.5}, "write a whole number"),
        ({"mask_truncated_completions": "yes please"}, "write true or false"),
        ({"optim": "adamw_torh"}, "did you mean 'adamw_torch'?"),
        ({"loss_type": "drgpo"}, "did you mean 'dr_grpo'?"),
        ({"loss_type": "?"}, "take one of grpo, bnpo"),
    ],
)
def test_values_that_trl_would_refuse_late(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)):
        check_values(given)


def test_values_that_trl_takes() -> None:
    check_values(
        {
            "learning_rate": 1,
            "optim": "adafactor",
            "lr_scheduler_type": "cosine",
            "loss_type": "dapo",
            "scale_rewards": False,
            "epsilon_high": None,
            "lr_scheduler_kwargs": {"num_cycles": 1},
            "warmup_steps": 0.1,
        }
    )


def test_every_loss_is_one_that_trl_names() -> None:
    from trl.trainer import grpo_trainer

    source = Path(grpo_trainer.__file__).read_text()
    assert set(LOSSES) == {
        name
        for found in re.findall(r"loss_type (?:==|in) (\"\w+\"|\[[^]]*\])", source)
        for name in re.findall(r"\w+", found)
    }


def test_a_group_of_one(bench: Bench) -> None:
    bench.write(COHORT.replace("problems_per_step: 2", "problems_per_step: 2, n: 1"))
    run = bench.run()
    assert run.wait() == 2
    assert "rollouts.n is 1: GRPO compares" in run.err
    assert bench.started() == []
