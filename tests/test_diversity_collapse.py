"""Signs of collapse over a run."""

from __future__ import annotations

import math

import pytest

from corl.collapse import CollapseMonitor, StepSummary, Thresholds, summarize

HEALTHY = StepSummary(step=0, reward_spread=0.4, vote_share=0.7, length=100.0, entropy=1.0, concentration=0.2)


def run(monitor: CollapseMonitor, summary: StepSummary, steps: int) -> list[str]:
    return [sign.kind for _ in range(steps) for sign in monitor.observe(summary)]


def test_a_healthy_run_has_no_signs() -> None:
    monitor = CollapseMonitor(window=5)
    assert run(monitor, HEALTHY, 50) == []
    assert monitor.active == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"reward_spread": 0.0}, "reward_spread"),
        ({"vote_share": 1.0}, "vote_share"),
        ({"length": 250.0}, "length"),
        ({"length": 40.0}, "length"),
        ({"entropy": 0.01}, "entropy"),
        ({"concentration": 1.0}, "constant"),
    ],
)
def test_each_sign_comes_once_after_a_window_and_goes(change: dict[str, float], kind: str) -> None:
    monitor = CollapseMonitor(window=4)
    assert run(monitor, HEALTHY, 6) == []
    fields = {name: getattr(HEALTHY, name) for name in HEALTHY.__dataclass_fields__}
    collapsed = StepSummary(**{**fields, **change})
    assert run(monitor, collapsed, 1) == [], "one step is no sign"
    assert run(monitor, collapsed, 20) == [kind]
    assert [sign.kind for sign in monitor.active] == [kind]
    assert run(monitor, HEALTHY, 8) == []
    assert monitor.active == []
    assert run(monitor, collapsed, 20) == [kind], "it came back"


def test_a_run_that_starts_collapsed_is_judged_by_a_whole_window() -> None:
    monitor = CollapseMonitor(window=4)
    constant = StepSummary(step=0, reward_spread=0.0, vote_share=1.0, concentration=1.0)
    assert run(monitor, constant, 3) == []
    assert run(monitor, constant, 1) == ["reward_spread", "vote_share", "constant"]


def test_signs_say_what_was_measured() -> None:
    monitor = CollapseMonitor(window=2)
    run(monitor, HEALTHY, 2)
    run(monitor, StepSummary(step=3, length=300.0), 2)
    (sign,) = monitor.active
    assert sign.value == 3.0
    assert sign.threshold == 2.0
    assert "300 tokens over the last 2 steps, 3.00 times" in sign.message


def test_steps_without_a_figure_are_passed_over() -> None:
    monitor = CollapseMonitor(window=3)
    for step in range(12):
        monitor.observe(StepSummary(step=step, vote_share=1.0 if step % 4 == 0 else None))
    assert [sign.kind for sign in monitor.active] == ["vote_share"]


def test_thresholds_are_the_callers() -> None:
    monitor = CollapseMonitor(window=1, thresholds=Thresholds(vote_share=0.5))
    assert run(monitor, HEALTHY, 1) == ["vote_share"]
    with pytest.raises(ValueError, match="window"):
        CollapseMonitor(window=0)


def test_a_resumed_monitor_is_told_the_past() -> None:
    past = [HEALTHY] * 6
    monitor, resumed = CollapseMonitor(window=3), CollapseMonitor(window=3)
    for summary in past:
        monitor.observe(summary)
        resumed.observe(summary)
    drifted = StepSummary(step=7, length=1000.0, entropy=0.0)
    assert run(monitor, drifted, 3) == run(resumed, drifted, 3) == ["length", "entropy"]


def test_a_step_in_figures() -> None:
    summary = summarize(
        3,
        rewards=[[1.0, 0.0, None], [None, None, None], [1.0, 1.0, 1.0]],
        vote_shares=[0.5, 1.0],
        lengths=[10, 20],
        answers=[["1", "2"], ["1", "1"]],
        voted=["1", "1", "1", "2", None],
    )
    assert summary.reward_spread == pytest.approx(math.sqrt(0.5) / 2)
    assert (summary.step, summary.vote_share, summary.length, summary.concentration) == (3, 0.75, 15.0, 0.75)
    assert summary.entropy == pytest.approx(math.log(2) / 2)
    assert summarize(3, entropy=0.3, answers=[["1", "2"]]).entropy == 0.3
    assert summarize(3) == StepSummary(step=3)
    assert summarize(3, voted=["1", "1", "1"]).concentration is None, "too few problems to say"


def test_a_self_rewarded_collapse_is_seen_though_its_reward_is_perfect() -> None:
    """Ever more problems are answered with 0 and voted so: the reward rises to 1 all the way."""
    monitor = CollapseMonitor(window=5)
    seen: set[str] = set()
    for step in range(40):
        constant = min(8, step // 3)
        groups = [["0"] * 8 if p < constant else [f"{p}"] * 5 + ["x", "y", "z"] for p in range(8)]
        rewards = [[1.0 if a == group[0] else 0.0 for a in group] for group in groups]
        shares = [group.count(group[0]) / 8 for group in groups]
        summary = summarize(
            step,
            rewards=rewards,  # type: ignore[arg-type]
            vote_shares=shares,
            lengths=[50],
            answers=groups,
            voted=[group[0] for group in groups],
        )
        seen |= {sign.kind for sign in monitor.observe(summary)}
    assert seen == {"reward_spread", "vote_share", "entropy", "constant"}
