"""Keys: marks outside equality, the wire form, what a vote needs of a key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import pytest

from corl.answers import AnswerKey, equivalent, extract, key


def keyed(answer: str) -> AnswerKey:
    found = key(answer)
    assert found is not None
    return found


def test_percent_is_a_mark_and_leaves_the_number_as_written() -> None:
    percent = keyed(r"33.3\%")
    assert percent == keyed("0.333")
    assert percent.percent
    assert not keyed("0.333").percent
    assert percent.decimals == keyed("0.333").decimals == 3
    assert percent.bare == keyed("33.3")
    assert percent.value == Fraction(333, 1000)


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        (r"5 \text{ cm}", "5"),
        ("2 hours", "2"),
        ("50 cents", "50"),
        ("52_8", "52"),
        ("y=2x+1", "2x+1"),
        ("3:30 PM", "3:30"),
        ("x=3, y=4", "(3, 4)"),
        (r"2\pi \text{ m}", r"2\pi"),
    ],
)
def test_what_was_left_out_is_found_again_in_the_bare_key(answer: str, bare: str) -> None:
    assert keyed(answer) != keyed(bare)
    assert keyed(answer).bare == keyed(bare)


def test_units_with_a_dimension_are_part_of_the_value_and_others_are_marks() -> None:
    assert keyed("2 hours").value == keyed("120 minutes").value == 7200
    assert keyed("2 hours").unit == "hours"
    assert keyed("7 apples").unit == "apples"
    assert keyed("7 apples") == keyed("7")
    assert keyed(r"\$7").unit == "$"
    assert keyed("7").bare is None


@pytest.mark.parametrize(("answer", "places"), [("0.333", 3), ("2.50", 2), ("1/3", None), ("3", None), ("1.2e-3", 4)])
def test_decimals_are_the_places_of_a_decimal_literal(answer: str, places: int | None) -> None:
    assert keyed(answer).decimals == places


def test_irrational_numbers_have_an_approximation_for_roundings() -> None:
    root = keyed(r"\sqrt{2}")
    assert root.value is None
    assert root.approx is not None
    assert abs(root.approx - Decimal(2).sqrt()) < Decimal("1e-22")
    assert len(root.approx.as_tuple().digits) >= 20
    assert str(keyed("1/3").approx) == "0." + "3" * 40
    assert keyed("3+4i").approx is None
    assert keyed("x").approx is None
    assert keyed(r"\infty").approx is None


def test_a_key_is_small_whatever_it_was_made_of() -> None:
    for answer in ["7" * 100_000, ",".join(map(str, range(5000))), "1500!", "x" * 3000, "word " * 4000]:
        assert len(str(keyed(answer))) < 700


def test_a_blank_has_no_key_and_equals_nothing() -> None:
    for blank in ["", " ", "\n\t", "\x00", "\u200b", "$$", "."]:
        assert key(blank) is None, ascii(blank)
        assert key(blank, "text") is None
        assert key(blank, "choice") is None
        assert not equivalent(blank, blank)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q",
        "q[",
        "q[]",
        "q[zz]:1",
        "q[d=x]:1",
        "Q:1",
        ":1",
        "q[%;w=1]:1",
        "toolongforakind:1",
        "q[b=:]:1",
        "q[b=1]:1",
    ],
)
def test_a_text_that_no_key_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="answer key"):
        AnswerKey.parse(text)


def test_bare_keys_within_bare_keys_are_bounded() -> None:
    nested = AnswerKey("q", "1")
    for _ in range(20):
        nested = AnswerKey("q", "1", bare=nested)
    with pytest.raises(ValueError, match="answer key"):
        AnswerKey.parse(str(nested))


def test_the_wire_form_is_stable() -> None:
    """These strings lie in stored votes: a change here is a change of format."""
    assert str(keyed(r"50\%")) == "q[%;d=2;b=q:50]:1/2"
    assert str(keyed("5 cm")) == "quantity[u=cm;b=q:5]:1/20|m"
    assert str(keyed("-3.50")) == "q[d=2]:-7/2"
    assert str(keyed(r"\sqrt2")) == "f:1.41421356237309504880169e0"
    assert str(keyed("x+1")) == str(keyed("1+x"))
    assert str(keyed("x+1")).startswith("f:3.71721901254386957475645e0;2.66598726674930438119288e0;-5.910770565624362")
    assert str(keyed("(1, 2]")) == "interval:(1,2]"
    assert str(keyed(r"\{2, 1\}")) == "set:1,2"
    assert str(keyed("Yes")) == "text:yes"
    assert str(key("(c)", "choice")) == "choice:C"


def test_threads_see_the_same_keys() -> None:
    answers = [rf"\frac{{{n}+\sqrt{{{n + 1}}}}}{{x^{n}+\sin {n}}}" for n in range(2, 60)]
    alone = [str(key(answer)) for answer in answers]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert [str(found) for found in pool.map(key, answers)] == alone


def test_tasks_and_options_are_checked() -> None:
    with pytest.raises(ValueError, match="task: 'maths' is unknown; one of math, choice, text"):
        key("1", "maths")
    with pytest.raises(ValueError, match="task: 'maths'"):
        extract("1", "maths")
    with pytest.raises(ValueError, match="options: 'PARIS' names no option"):
        key("A", "choice", ["Paris", "London"])
    with pytest.raises(ValueError, match="options: 'AA'"):
        key("A", "choice", "AA")
    with pytest.raises(ValueError, match="options"):
        extract("Answer: A", "choice", [])


def test_options_may_be_letters_or_letters_with_texts() -> None:
    for options in ["ABCD", ["A", "B", "C", "D"], ("a", "b", "c", "d"), {"A": "1", "B": "2", "C": "3", "D": "4"}]:
        assert key("(c)", "choice", options) == AnswerKey("choice", "C")
    assert key("0.50", "choice", {"A": r"\frac12", "B": "2"}) == AnswerKey("choice", "A")
    assert key("E", "choice", "ABCD") == AnswerKey("text", "e")
