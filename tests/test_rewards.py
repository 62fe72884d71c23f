"""Rewards against each source of votes, and group advantages with rows left out."""

from __future__ import annotations

import itertools
import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corl.answers import key
from corl.rewards import (
    advantages,
    collective,
    collective_rewards,
    combine,
    peer_rewards,
    rewards,
    self_rewards,
    spread,
    truth_rewards,
    truth_vote,
)
from corl.votes import Histogram, Vote, attach, tally


def test_right_wrong_and_none() -> None:
    vote = tally(["1/2", "0.5", "3"])
    assert rewards(["\\frac{1}{2}", "3", None, "", "50\\%"], vote) == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert rewards([], vote) == []


@pytest.mark.parametrize("answers", [["3", "4"], ["3"], [None], []], ids=["tie", "weak", "none", "empty"])
def test_without_a_label_there_are_no_rewards_not_zeros(answers: list[str | None]) -> None:
    assert rewards(["3", None, "4"], tally(answers)) == [None, None, None]


def test_a_percent_and_a_bare_number_in_the_vote_both_win() -> None:
    vote = tally(["50\\%"] * 3 + ["50"] * 2)
    assert rewards(["50", "50\\%", "0.5"], vote) == [1.0, 1.0, 0.0]


def test_choice_and_text_are_read_as_such() -> None:
    options = {"A": "3", "B": "4"}
    vote = tally(["A", "A", "B"], task="choice", options=options)
    assert rewards(["(A)", "B"], vote, task="choice", options=options) == [1.0, 0.0]
    assert rewards(["PARIS"], tally(["Paris", "paris"], task="text"), task="text") == [1.0]


# Sources -------------------------------------------------------------------------------------------------------------


def ok(answer: str, n: int = 4) -> Vote:
    return tally([answer] * n)


TIE, WEAK, NONE = tally(["3", "4"]), tally(["3"]), tally([None])


@pytest.mark.parametrize(
    ("votes", "status", "answer"),
    [
        ([ok("3"), ok("3"), ok("4")], "ok", "3"),
        ([ok("3"), ok("4")], "tie", None),
        ([ok("3", 9), ok("4", 2)], "tie", None),
        ([ok("3"), ok("4"), ok("5")], "tie", None),
        ([ok("3"), TIE, WEAK, NONE], "ok", "3"),
        ([TIE, WEAK, NONE], "tie", None),
        ([WEAK, NONE], "weak", None),
        ([NONE, NONE], "none", None),
        ([ok("0.5"), ok("1/2"), ok("3")], "ok", "0.5"),
        ([ok("50\\%"), ok("50"), ok("3")], "ok", "50"),
        ([ok("50\\%"), ok("50"), ok("0.5")], "ok", "0.5"),
    ],
)
def test_several_teachers(votes: list[Vote], status: str, answer: str | None) -> None:
    for order in itertools.permutations(votes):
        vote = combine(order)
        assert (vote.status, vote.answer, vote.total) == (status, answer, len(votes))
        assert vote.parsed == sum(v.labeled for v in votes)


def test_one_teacher_is_taken_as_it_is() -> None:
    for vote in (ok("3"), TIE, WEAK, NONE):
        assert combine([vote]) is vote
    with pytest.raises(ValueError, match="at least one teacher"):
        combine([])


def test_teachers_keys_are_joined_by_the_rules_of_one_vote() -> None:
    third = combine([tally(["1/3", "1/3", "0.333"]), ok("1/3"), ok("7")])
    assert attach(key("0.333"), third)
    percent, unit = tally(["50", "50", "50\\%"]), tally(["50", "50", "50\\text{ cm}"])
    assert attach(key("50\\%"), percent)
    assert attach(key("50\\text{ cm}"), unit)
    both = combine([percent, unit])
    assert [attach(key(a), both) for a in ("50", "50\\%", "50\\text{ cm}")] == [True, False, False]


def test_sources() -> None:
    answers = ["3", "3", "4", None]
    assert self_rewards(answers) == [1.0, 1.0, 0.0, 0.0]
    assert self_rewards(answers, threshold=0.9) == [None] * 4
    assert self_rewards(["4", "3"], ties="first") == [1.0, 0.0]
    assert truth_rewards(answers, "4") == [0.0, 0.0, 1.0, 0.0]
    assert peer_rewards(answers, [ok("4")]) == [0.0, 0.0, 1.0, 0.0]
    assert peer_rewards(answers, [ok("4"), ok("3")]) == [None] * 4


def test_a_truth_is_an_answer() -> None:
    assert truth_vote("1/2").labeled
    with pytest.raises(ValueError, match="truth"):
        truth_vote(" ")


def test_the_collective_sums_all_members() -> None:
    members = {
        "a": Histogram.of(["3", "3", "3", "4"]),
        "b": Histogram.of(["4", "4", "5", None]),
        "c": Histogram.of(["4", "6", "7", "8"]),
    }
    vote = collective(members)
    assert (vote.answer, vote.count, vote.parsed, vote.total) == ("4", 4, 11, 12)
    assert collective_rewards(["3", "4"], members) == [0.0, 1.0]


def test_the_collective_may_weigh_members_by_their_share_exactly() -> None:
    members = {
        "a": Histogram.of(["3", "3", "3", "4"]),
        "b": Histogram.of(["4", "4", "5"]),
        "c": Histogram.of(["4", "6"]),
    }
    vote = collective(members, "share")
    three, four = Fraction(3, 4) * 3, Fraction(3, 4) * 1 + Fraction(2, 3) * 2 + Fraction(1, 2) * 1
    assert four > three
    assert (vote.answer, vote.count) == ("4", four)
    assert vote.runner_up is not None
    assert vote.runner_up.count == three


def test_a_tie_of_exact_shares_is_a_tie() -> None:
    """In floats 1/3 * 1 + 1/3 * 1 + 1/3 * 1 and 1.0 * 1 could differ in the last digit."""
    split = [Histogram.of(["3", other, "x_1"]) for other in ("5", "6", "7")]
    members = dict(zip("abc", split, strict=True)) | {"d": Histogram.of(["4"])}
    assert collective(members, "share").status == "tie"


def test_a_member_without_answers_has_no_say() -> None:
    members = {"a": Histogram.of([None, None]), "b": Histogram.of(["3", "3"])}
    assert collective(members, "share").answer == "3"
    assert collective({"a": Histogram.of([None])}, "share").status == "none"


def test_a_wrong_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        collective({})
    with pytest.raises(ValueError, match="weighting"):
        collective({"a": Histogram.of(["3"])}, "loudness")  # type: ignore[arg-type]


# Advantages ----------------------------------------------------------------------------------------------------------


def close(got: list[float | None], expected: list[float | None]) -> bool:
    return all(
        (g is None and e is None) or (g is not None and e is not None and math.isclose(g, e, abs_tol=1e-12))
        for g, e in zip(got, expected, strict=True)
    )


def test_a_row_without_a_reward_is_in_neither_mean_nor_spread() -> None:
    assert close(advantages([1, None, 0, 0], "none"), [2 / 3, None, -1 / 3, -1 / 3])
    deviation = statistics.stdev([1, 0, 0])
    assert close(advantages([1, None, 0, 0]), [x and x / (deviation + 1e-4) for x in (2 / 3, None, -1 / 3, -1 / 3)])


def test_groups_have_their_own_means_and_the_batch_one_spread() -> None:
    flat = [1.0, 0.0, 1.0, 1.0, None, 0.0]
    deviation = statistics.stdev([1, 0, 1, 1, 0])
    assert close(advantages(flat, "none", group_size=2), [0.5, -0.5, 0.0, 0.0, None, 0.0])
    assert close(
        advantages(flat, "batch", group_size=2), [x / (deviation + 1e-4) for x in (0.5, -0.5, 0.0, 0.0)] + [None, 0.0]
    )


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_nothing_to_learn_from(scale: str) -> None:
    assert advantages([], scale) == []  # type: ignore[arg-type]
    assert advantages([None, None], scale) == [None, None]  # type: ignore[arg-type]
    assert advantages([None, 1.0], scale) == [None, 0.0]  # type: ignore[arg-type]
    assert advantages([1.0, 1.0], scale) == [0.0, 0.0]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -2, 3, 8])
def test_groups_must_fit(size: int) -> None:
    with pytest.raises(ValueError, match="group_size"):
        advantages([1.0, 0.0, 1.0, 0.0], group_size=size)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        advantages([1.0], "std")  # type: ignore[arg-type]


row = st.sampled_from([0.0, 1.0, None])


@given(st.lists(st.tuples(row, row, row, row), min_size=1, max_size=5), st.sampled_from(["none", "group", "batch"]))
def test_advantages_sum_to_zero_in_each_group(groups: list[tuple[float | None, ...]], scale: str) -> None:
    flat = [reward for group in groups for reward in group]
    got = advantages(flat, scale, group_size=4)  # type: ignore[arg-type]
    assert [a is None for a in got] == [r is None for r in flat]
    for start in range(0, len(got), 4):
        assert math.isclose(sum(a for a in got[start : start + 4] if a is not None), 0.0, abs_tol=1e-6)


def test_spread() -> None:
    assert spread([1.0, None]) is None
    assert spread([1.0, None, 0.0]) == statistics.stdev([1, 0])
