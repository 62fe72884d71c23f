"""Diversity of a cohort: what tells a healthy one from a shared misconception and from a shared constant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corl.answers import key
from corl.collapse import cohort_signs
from corl.diversity import (
    agreement,
    agreement_in_error,
    answer_entropy,
    answer_kappa,
    concentration,
    error_kappa,
    measure,
)

TRUTH = [f"{n}" for n in range(20)]


def erring(wrong: dict[int, str]) -> list[str | None]:
    return [wrong.get(n, TRUTH[n]) for n in range(20)]


def test_high_agreement_alone_is_not_health() -> None:
    """Three cohorts whose members agree on 90 % or more; only the first has something to learn from each other."""
    healthy = {"a": erring({1: "x"}), "b": erring({2: "y"})}
    misled = {"a": erring({1: "x", 2: "y", 3: "z", 4: "w"}), "b": erring({1: "x", 2: "y", 3: "z", 4: "w"})}
    constant = {"a": ["0"] * 20, "b": ["0"] * 20}
    figures = {}
    for name, cohort in (("healthy", healthy), ("misled", misled), ("constant", constant)):
        diversity = measure(cohort, TRUTH)
        figures[name] = diversity.pairs["a", "b"]
        assert figures[name].agreement is not None
        assert figures[name].agreement >= 0.9
        assert bool(cohort_signs(diversity)) is (name != "healthy")
    assert figures["healthy"].error_kappa == pytest.approx(-1 / 19)
    assert figures["healthy"].agreement_in_error is None
    assert (figures["misled"].error_kappa, figures["misled"].agreement_in_error) == (1.0, 1.0)
    assert figures["misled"].answer_kappa == 1.0
    assert figures["constant"].answer_kappa is None
    kinds = {sign.kind for sign in cohort_signs(measure(constant, TRUTH))}
    assert kinds == {"constant", "redundant"}
    assert [sign.kind for sign in cohort_signs(measure(constant))] == ["constant", "constant"]


def test_nearly_constant_answers_have_no_kappa_to_speak_of() -> None:
    a, b = ["0"] * 19 + ["1"], ["1"] + ["0"] * 19
    assert agreement(a, b) == 0.9
    found = answer_kappa(a, b)
    assert found is not None
    assert found < 0.0


def test_cohens_example() -> None:
    """50 grants read by two: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: kappa is (.7 - .5) / (1 - .5)."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    a, b = zip(*pairs, strict=True)
    assert agreement(a, b) == 0.7
    assert answer_kappa(a, b) == pytest.approx(0.4)


def test_answers_that_are_missing_are_not_compared_but_are_errors() -> None:
    assert agreement(["1", None, "2"], ["1", "3", None]) == 1.0
    assert agreement([None], ["1"]) is None
    assert error_kappa([None, "1", None, "1"], ["x", "1", "x", "1"], ["1", "1", "1", "1"]) == 1.0
    assert agreement_in_error([None, "x"], [None, "x"], ["1", "1"]) == 1.0


def test_agreement_in_error_is_only_about_errors() -> None:
    assert agreement_in_error(["x", "x", "1"], ["x", "y", "2"], ["0", "0", "1"]) == 0.5
    assert agreement_in_error(["1"], ["1"], ["1"]) is None


def test_complementary_errors_have_a_negative_kappa() -> None:
    assert error_kappa(["1", "x"], ["x", "1"], ["1", "1"]) == -1.0
    assert error_kappa(["1"], ["1"], ["1"]) is None


def test_entropy_of_distinct_answers() -> None:
    assert answer_entropy([]) == answer_entropy([None]) == answer_entropy(["1", "1", None]) == 0.0
    assert answer_entropy(["1", "2", "3", "4"]) == pytest.approx(math.log(4))
    assert answer_entropy(["1", "1", "2", "2", None]) == pytest.approx(math.log(2))
    assert answer_entropy(map(key, ["1/2", "0.5", "\\frac12", "3"])) == answer_entropy(["a", "a", "a", "b"])


def test_measure_over_the_cohort() -> None:
    diversity = measure({"a": ["1", "2", None], "b": ["1", "3", None], "c": ["1", "4", None]})
    assert list(diversity.pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert diversity.entropy == pytest.approx(math.log(3) / 2), "nobody answered the third problem"
    assert diversity.concentration == {"a": 0.5, "b": 0.5, "c": 0.5}
    assert diversity.pairs["a", "b"].error_kappa is None
    assert measure({"a": [None]}).concentration == {"a": None}
    assert concentration([]) is None


def test_answers_must_be_aligned() -> None:
    with pytest.raises(ValueError, match=r"numbers differ: \{'a': 2, 'b': 1\}"):
        measure({"a": ["1", "2"], "b": ["1"]})
    with pytest.raises(ValueError, match="truth"):
        measure({"a": ["1", "2"], "b": ["1", "2"]}, ["1"])


answers = st.sampled_from(["0", "1", "2", None])
problems = st.lists(st.tuples(answers, answers, st.sampled_from("012")), max_size=30)


@given(problems)
def test_figures_are_symmetric_and_bounded(rows: list[tuple[str | None, str | None, str]]) -> None:
    a, b, truth = ([row[i] for row in rows] for i in range(3))
    for one, other in ((agreement(a, b), agreement(b, a)), (answer_kappa(a, b), answer_kappa(b, a))):
        assert one == other
    assert error_kappa(a, b, truth) == error_kappa(b, a, truth)
    for figure in (answer_kappa(a, b), error_kappa(a, b, truth)):
        assert figure is None or -1.0 <= figure <= 1.0
    for share in (agreement(a, b), agreement_in_error(a, b, truth), concentration(a)):
        assert share is None or 0.0 <= share <= 1.0
    assert 0.0 <= answer_entropy(a) <= math.log(3) + 1e-12
