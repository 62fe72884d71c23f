"""Group advantages are those that TRL's trainer computes. Apart, because importing TRL takes seconds."""

from __future__ import annotations

import math

import pytest

from corl.rewards import Scale, advantages


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_advantages_are_those_of_the_trainer(scale: Scale) -> None:
    """The trainer's formulas (`GRPOTrainer._generate_and_score_completions`) on the same numbers, NaN for None."""
    torch = pytest.importorskip("torch")
    nanstd = pytest.importorskip("trl.trainer.utils").nanstd
    flat: list[float | None] = [1.0, None, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, None, None, None, 1.0]
    values = torch.tensor([math.nan if reward is None else reward for reward in flat], dtype=torch.float64)
    groups = values.view(-1, 4)
    expected = (groups - torch.nanmean(groups, dim=1, keepdim=True)).flatten()
    if scale == "group":
        expected = expected / (nanstd(groups, dim=1).repeat_interleave(4) + 1e-4)
    elif scale == "batch":
        expected = expected / (nanstd(values) + 1e-4)
    got = [0.0 if advantage is None else advantage for advantage in advantages(flat, scale, group_size=4)]
    assert torch.allclose(torch.tensor(got, dtype=torch.float64), torch.nan_to_num(expected, nan=0.0))
