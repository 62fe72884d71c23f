"""Votes: statuses, names, ties, and which answers are one answer."""

from __future__ import annotations

from fractions import Fraction

import pytest

from corl.answers import AnswerKey, key
from corl.attachment import class_key, joins
from corl.votes import Histogram, Vote, attach, tally


def agrees(answer: str, vote: Vote) -> bool:
    return attach(key(answer), vote)


# Statuses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "options", "status"),
    [
        ([], {}, "none"),
        ([None, None], {}, "none"),
        (["", "  "], {}, "none"),
        (["3"], {}, "weak"),
        (["3", None, None], {}, "weak"),
        (["3"], {"min_parsed": 1}, "ok"),
        (["3", "3"], {}, "ok"),
        (["3", "4"], {}, "tie"),
        (["3", "3", "4", "4"], {}, "tie"),
        (["3", "3", "4"], {}, "ok"),
        (["3", "3", "4"], {"threshold": 0.7}, "weak"),
        (["3", "3", "4", "5"], {"threshold": 0.5}, "ok"),
        (["3", "3", "4", "4"], {"threshold": 0.6}, "tie"),
        (["3", "4"], {"ties": "first"}, "ok"),
        (["3", "4"], {"ties": "first", "min_parsed": 3}, "weak"),
        (["3", "4"], {"ties": "first", "threshold": 0.6}, "weak"),
    ],
)
def test_statuses(answers: list[str | None], options: dict[str, object], status: str) -> None:
    vote = tally(answers, **options)  # type: ignore[arg-type]
    assert vote.status == status
    assert vote.labeled is (status == "ok")
    assert (vote.answer is not None) is (vote.key is not None) is bool(vote.keys) is (status in ("ok", "weak"))
    assert vote.total == len(answers)


@pytest.mark.parametrize("tenths", range(11))
def test_a_share_at_the_threshold_is_enough(tenths: int) -> None:
    answers = ["1"] * tenths + [str(n) for n in range(2, 12 - tenths)]
    vote = tally(answers, threshold=tenths / 10, min_parsed=1)
    assert vote.status in ("ok", "tie")


def test_counts_and_runner_up() -> None:
    vote = tally(["3", "4", None, "3.0", "5", "4", "3", ""])
    assert (vote.answer, vote.key, vote.count, vote.parsed, vote.total) == ("3", key("3"), 3, 6, 8)
    assert vote.share == 3 / 6
    assert vote.runner_up is not None
    assert (vote.runner_up.answer, vote.runner_up.key, vote.runner_up.count) == ("4", key("4"), 2)
    assert tally(["3", "3"]).runner_up is None
    assert tally(["9", "8", "7", "7"]).runner_up == tally(["8", "9", "7", "7"]).runner_up


def test_a_tie_has_no_winner_but_its_counts() -> None:
    vote = tally(["3", "3", "4", "4", "5"])
    assert (vote.answer, vote.key, vote.keys, vote.runner_up) == (None, None, frozenset(), None)
    assert (vote.count, vote.parsed, vote.share) == (2, 5, 0.4)
    assert not agrees("3", vote)


def test_first_wins_a_tie_only_when_asked_to() -> None:
    assert tally(["4", "3", "3", "4"], ties="first").answer == "4"
    assert tally(["3", "4", "3", "4"], ties="first").answer == "3"
    assert tally(["5", "3", "4", "3", "4"], ties="first").answer == "3"
    assert tally([None, "4", "3"], ties="first", min_parsed=1).answer == "4"


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": 1.5}, {"threshold": -0.1}, {"threshold": float("nan")}, {"ties": "last"}, {"min_parsed": 0}],
)
def test_a_wrong_policy_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tally(["3"], **wrong)  # type: ignore[arg-type]


def test_a_winner_is_named_by_its_most_frequent_then_shortest_then_first_spelling() -> None:
    assert tally(["0.5", "\\frac{1}{2}", "\\frac{1}{2}"]).answer == "\\frac{1}{2}"
    assert tally(["\\frac{1}{2}", "0.5", "1/2"]).answer == "0.5"
    assert tally(["\\sqrt{8}", "2\\sqrt{2}", "\\sqrt 8"]).answer == "\\sqrt 8"


def test_tasks_have_their_own_answers() -> None:
    options = {"A": "3", "B": "4"}
    assert tally(["A", "(A)", "B"], task="choice", options=options).count == 2
    assert tally(["Paris", "paris", "Rome"], task="text").count == 2


# Weights -------------------------------------------------------------------------------------------------------------


def test_weights_are_summed_exactly() -> None:
    tenths = [Fraction(1, 10)] * 10
    assert tally(["3"] * 10 + ["4"], weights=[*tenths, 1]).status == "tie"
    vote = tally(["3", "3", "4"], weights=[Fraction(1, 3), Fraction(1, 3), Fraction(1, 2)])
    assert (vote.answer, vote.count, vote.parsed, vote.total) == ("3", Fraction(2, 3), Fraction(7, 6), Fraction(7, 6))
    assert vote.share == 4 / 7
    assert tally(["3", "4", None], weights=[1, 2, 5]).total == 8
    assert tally(["3", "3", "4"], weights=[0.5, 0.5, 2.0]).answer == "4"


def test_min_parsed_counts_answers_and_not_weights() -> None:
    assert tally(["3", "3"], weights=[0.25, 0.25]).status == "ok"
    assert tally(["3"], weights=[10]).status == "weak"


def test_an_answer_without_weight_has_no_vote() -> None:
    assert tally(["3", "4"], weights=[0, 0]).status == "none"
    vote = tally(["3", "4", "4"], weights=[1, 0, 0])
    assert (vote.status, vote.answer, vote.runner_up) == ("weak", "3", None)
    assert tally(["4", "3", "4"], weights=[0, 1, 1], ties="first").answer == "3"
    assert tally(["1/2", "0.50", "0.50"], weights=[0, 1, 1]).answer == "0.50"


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_wrong_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        tally(["3", "4"], weights=weights)


# Attachments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "count", "members", "strangers"),
    [
        (["50\\%"] * 3 + ["50"] * 2 + ["7"] * 4, 5, ["50", "50\\%", "50%"], ["0.5", "1/2", "7", "50 cm"]),
        (["50\\%"] * 2 + ["50"] * 3 + ["7"] * 4, 5, ["50", "50\\%"], ["0.5", "50\\text{ apples}"]),
        (["50\\%"] * 5, 5, ["50\\%", "0.5", "1/2"], ["50"]),
        (["50\\%"] * 3 + ["0.5", "50", "50"], 4, ["50\\%", "0.5", "\\frac12"], ["50"]),
        (["5\\text{ cm}"] * 2 + ["5"] * 2 + ["6"] * 3, 4, ["5", "5\\text{ cm}"], ["5\\text{ m}", "50\\text{ mm}"]),
        (["52_8"] * 2 + ["52"] * 2 + ["6"] * 3, 4, ["52", "52_8"], ["52_9", "42"]),
        (["y=2x+1"] * 2 + ["2x+1"] * 2 + ["6"] * 3, 4, ["y=2x+1", "2x+1", "1+2x"], ["z=2x+1"]),
        (["1/3"] * 2 + ["0.333"] * 2 + ["6"] * 3, 4, ["1/3", "0.333", ".333", "33.3\\%"], ["333/1000", "0.3333"]),
        (["1/3"] + ["0.333"] * 2 + ["0.3333"] * 2 + ["6"] * 3, 5, ["1/3", "0.333", "0.3333"], ["0.33"]),
        (["\\sqrt{2}"] * 2 + ["1.4142"] * 2 + ["6"] * 3, 4, ["\\sqrt2", "1.4142"], ["1.414"]),
        (["\\pi"] * 2 + ["3.142"] * 2 + ["6"] * 3, 4, ["\\pi", "3.142"], ["3.14", "22/7"]),
        (["1/16", "0.0625", "0.063"] + ["6"] * 2, 3, ["1/16", "0.0625", "0.063"], ["0.062"]),
        (["1/16"] * 2 + ["0.062", "0.063"] + ["6"] * 3, 4, ["1/16", "0.0625", "0.062", "0.063"], ["0.0624"]),
    ],
)
def test_what_is_joined(answers: list[str], count: int, members: list[str], strangers: list[str]) -> None:
    vote = tally(answers)
    assert (vote.status, vote.count) == ("ok", count)
    assert [answer for answer in members if not agrees(answer, vote)] == []
    assert [answer for answer in strangers if agrees(answer, vote)] == []


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (["5", "5", "5\\text{ m}", "5\\text{ cm}"], "two units: 5 may be either"),
        (["5", "5", "5\\text{ cm}", "5\\%"], "a unit and a percent sign"),
        (["2", "2", "2\\text{ hours}", "120\\text{ minutes}", "2\\text{ cm}"], "hours, minutes and cm"),
        (["50", "50", "50\\%", "0.5"], "50% is 0.5 here"),
        (["50\\text{ apples}", "50", "50\\%"], "50 is a number of apples here"),
        (["1/3", "1/3", "0.33"], "two places are too few"),
        (["1/3", "1/3", "0.334"], "not its rounding"),
        (["1/3", "1/3", "0.3330"], "not its rounding to four places"),
        (["0.333", "0.333", "0.3333"], "neither is exact"),
        (["1/3", "1/3", "333/1000"], "both are exact"),
        (["1/3", "1/3", "3333/10000", "0.333"], "rounds two exact answers"),
        (["2/3", "2/3", "0.666"], "cut off, not rounded"),
    ],
)
def test_what_is_left_alone(answers: list[str], why: str) -> None:
    assert tally(answers, ties="first").count == 2, why


def test_a_class_with_two_partners_joins_neither() -> None:
    vote = tally(["33.3"] * 3 + ["33.3\\%"] * 3 + ["1/3"] * 3)
    assert (vote.status, vote.count) == ("tie", 3)


def test_joins_make_no_chain() -> None:
    """0.333 m may be 0.333, and 0.333 may be 1/3, but 0.333 m is not 1/3: the join of the larger class stands."""
    vote = tally(["0.333"] * 5 + ["1/3"] * 3 + ["0.333\\text{ m}"] * 2 + ["9"] * 7)
    assert (vote.answer, vote.count) == ("1/3", 8)
    assert not agrees("0.333\\text{ m}", vote)
    vote = tally(["0.333"] * 2 + ["1/3"] * 3 + ["0.333\\text{ m}"] * 5 + ["9"] * 6)
    assert (vote.answer, vote.count) == ("0.333\\text{ m}", 7)
    assert not agrees("1/3", vote)


def test_joins_are_stars() -> None:
    keys = {text: key(text) for text in ("0.333", "1/3", "0.333\\text{ m}")}
    for counts in ((5, 3, 2), (2, 3, 5)):
        (join,) = joins({k: (n, [k]) for k, n in zip(keys.values(), counts, strict=True) if k is not None})
        ends = (keys["0.333"], keys["1/3"]) if counts[0] == 5 else (keys["0.333\\text{ m}"], keys["0.333"])
        assert (join.attached, join.centre) == ends


def test_a_rounding_never_names_the_answer() -> None:
    vote = tally(["0.333"] * 5 + ["1/3"])
    assert (vote.answer, vote.key, vote.count) == ("1/3", key("1/3"), 6)


def test_equal_keys_of_several_spellings_have_the_marks_of_all() -> None:
    percent, decimal, fraction = (key(text) for text in ("50\\%", "0.5", "1/2"))
    assert percent is not None
    assert decimal is not None
    assert fraction is not None
    assert class_key([percent]).percent
    assert not class_key([percent, decimal]).percent
    assert class_key([percent, decimal]).bare is None
    assert class_key([decimal]).decimals == 1
    assert class_key([decimal, fraction]).decimals is None
    assert str(class_key([percent, decimal, fraction])) == str(class_key([fraction, percent, decimal]))
    long, longer, short = (AnswerKey("q", "1/2", decimals=places) for places in (3, 5, 1))
    assert class_key([long, longer]).decimals == 5
    assert class_key([longer, short]).decimals == 1
    with pytest.raises(ValueError, match="different classes"):
        class_key([percent, AnswerKey("q", "1/3")])
    with pytest.raises(ValueError, match="at least one"):
        class_key([])


def test_hostile_marks_cost_nothing() -> None:
    """Keys come over the wire too: a mark that asks for a power of ten with a million digits is no rounding."""
    vast = AnswerKey.parse("q[d=999999]:333/1000")
    vote = tally(["1/3", "1/3", "0.333"])
    assert not attach(vast, vote)


# Histograms ----------------------------------------------------------------------------------------------------------


def test_a_histogram_tallies_to_the_same_vote_under_any_policy() -> None:
    answers = ["4", "3", None, "3.0", "4", "1/3", "0.333", "", "4\\%"]
    histogram = Histogram.from_bytes(Histogram.of(answers).to_bytes())
    for policy in ({}, {"threshold": 0.5}, {"ties": "first"}, {"min_parsed": 9}):
        assert histogram.tally(**policy) == tally(answers, **policy)  # type: ignore[arg-type]
    assert histogram.total == 9


def test_a_histogram_survives_bytes_whatever_the_answers() -> None:
    answers = ["\ud800", "é\n\t\0", '"', "x" * 5000, "\\frac{1}{2}", "½"]
    histogram = Histogram.of(answers, weights=[Fraction(1, 3), 0, 1, 2.5, 1, 10**30])
    assert Histogram.from_bytes(histogram.to_bytes()) == histogram


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b"[1,[[1]]]", b'[1,[["3","nokey",1,0]]]', b"[-1,[]]", b"[1.5,[]]", b'["1/0",[]]', b"\xff"],
)
def test_what_is_no_histogram_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a histogram"):
        Histogram.from_bytes(data)


def test_pooled_histograms_are_one_list_of_answers() -> None:
    first, second = ["3", None, "4"], ["4", "3", "3.0"]
    pooled = Histogram.pool([(Histogram.of(first), 1), (Histogram.of(second), 1)])
    assert pooled.tally(ties="first") == tally(first + second, ties="first")
    apart = Histogram.pool([(Histogram.of(["4"]), 1), (Histogram.of(["3"]), 1)])
    assert apart.tally(ties="first").answer == "4"
    weighted = Histogram.pool([(Histogram.of(first), Fraction(1, 2)), (Histogram.of(second), 3)])
    assert weighted.tally() == tally(first + second, weights=[Fraction(1, 2)] * 3 + [3] * 3)
