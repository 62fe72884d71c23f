from __future__ import annotations

import random

import pytest
from corl_trainer.schedule import Schedule
from hypothesis import given
from hypothesis import strategies as st

IDS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True)


@given(ids=IDS, seed=st.integers(0, 2**32), step=st.integers(0, 200), data=st.data())
def test_a_step_is_a_function_of_ids_and_seed_alone(ids: list[str], seed: int, step: int, data: st.DataObject) -> None:
    per_step = data.draw(st.integers(1, len(ids)))
    shuffled = random.Random(1).sample(ids, len(ids))
    walked = Schedule(ids, seed, per_step)
    before = [walked.problems(s) for s in range(step)]
    assert Schedule(shuffled, seed, per_step).problems(step) == walked.problems(step)
    assert [walked.problems(s) for s in range(step)] == before


@given(ids=IDS, seed=st.integers(0, 2**32), epoch=st.integers(0, 5), data=st.data())
def test_an_epoch_has_every_problem_at_most_once(ids: list[str], seed: int, epoch: int, data: st.DataObject) -> None:
    per_step = data.draw(st.integers(1, len(ids)))
    schedule = Schedule(ids, seed, per_step)
    first = epoch * schedule.steps_per_epoch
    seen = [p for s in range(first, first + schedule.steps_per_epoch) for p in schedule.problems(s)]
    assert len(seen) == len(set(seen)) == len(ids) - len(ids) % per_step
    assert set(seen) <= set(ids)


def test_epochs_and_seeds_differ() -> None:
    ids = [str(i) for i in range(64)]
    a, b = Schedule(ids, 1, 8), Schedule(ids, 2, 8)
    assert a.problems(0) != a.problems(8)
    assert a.problems(0) != b.problems(0)


def test_the_order_is_fixed_for_good() -> None:
    """Runs are resumed with later versions: this order must never change."""
    schedule = Schedule([f"p{i}" for i in range(7)], 42, 3)
    assert [schedule.problems(step) for step in range(3)] == [
        ["p5", "p4", "p1"],
        ["p3", "p0", "p2"],
        ["p4", "p1", "p2"],
    ]


def test_rows_number_the_slots() -> None:
    schedule = Schedule(["a", "b", "c"], 0, 2)
    rows = list(schedule.rows(3))
    assert [slot for slot, _ in rows] == list(range(6))
    assert [problem for _, problem in rows] == [p for step in range(3) for p in schedule.problems(step)]


@pytest.mark.parametrize(
    ("ids", "per_step", "message"),
    [(["a"], 2, "problems_per_step is 2 but there are 1"), (["a", "a"], 1, "twice"), (["a"], 0, "1 or more")],
)
def test_what_cannot_be_scheduled_is_refused(ids: list[str], per_step: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(ids, 0, per_step)
