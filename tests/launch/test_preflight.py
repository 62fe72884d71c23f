"""What is found before anything is started."""

from __future__ import annotations

import dataclasses

import pytest
from corl_trainer.launch.preflight import grpo_fields

from tests.launch.conftest import COHORT, Bench


def test_the_fields_are_those_of_trl() -> None:
    from corl_trainer.trl_import import GRPOConfig

    assert grpo_fields() == {field.name for field in dataclasses.fields(GRPOConfig)}


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ("learning_rat: 1e-6", "did you mean 'learning_rate'?"),
        ("max_steps: 5", "set training.steps instead"),
        ("per_device_train_batch_size: 3", "their product must be 16"),
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
