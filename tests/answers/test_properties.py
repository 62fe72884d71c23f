"""What holds of all keys: one answer in any spelling, different answers apart, and the wire."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from corl.answers import TASKS, AnswerKey, equivalent, extract, key

DATA = Path(__file__).parent.parent / "data"
ANSWERS = sorted(
    {
        text
        for name in ("answers.jsonl", "answers_own.jsonl")
        for case in map(json.loads, (DATA / name).open())
        if case["kind"] == "equiv"
        for text in (case["a"], case["b"])
    }
)

fractions = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**6)
integers = st.integers(-(10**9), 10**9)
anything = st.one_of(st.text(max_size=200), st.text("0123456789+-*/^_{}()[]\\,.;:=<>|!%$ xyie", max_size=120))


@st.composite
def spellings(draw: st.DrawFn) -> tuple[Fraction, str]:
    """A rational and one of its spellings."""
    value = draw(fractions)
    n, d = value.numerator, value.denominator
    k = draw(st.integers(1, 9))
    sign, a = ("-" if n < 0 else ""), abs(n)
    forms = [
        f"{n}/{d}",
        rf"\frac{{{n}}}{{{d}}}",
        rf"{sign}\frac{{{a * k}}}{{{d * k}}}",
        rf"{sign}\dfrac{{{a}}}{{{d}}}",
        f"({n})/({d})",
        rf"\left({n}\right) \div {d}",
        rf"\frac{{{-n}}}{{{-d}}}",
        f"{n}*{d}^{{-1}}",
        rf"{n - d}/{d} + 1",
        rf"\sqrt[3]{{({n}/{d})^3}}",
    ]
    if d == 1:
        forms += [f"{n}", f"{n}.0", f"{sign}{a:,}", f"{sign}0{a}", f"{n}.", f"{sign}{a:,}".replace(",", r"\,")]
    elif a > d:
        forms.append(rf"{sign}{a // d}\frac{{{a % d}}}{{{d}}}")
    if 10**6 % d == 0:
        digits = a * 10**6 // d
        forms += [
            f"{sign}{digits // 10**6}.{digits % 10**6:06d}",
            f"{sign}{digits}e-06",
            rf"{n * 100 * 10**4 // d}e-4\%",
        ]
    text = draw(st.sampled_from(forms))
    return value, draw(st.sampled_from(["{}", "${}$", " {} ", r"\boxed{{{}}}", r"\text{{}}{}", "{}.", "= {}"])).format(
        text
    )


@given(spellings())
def test_every_spelling_of_a_rational_has_its_key(case: tuple[Fraction, str]) -> None:
    value, text = case
    found = key(text)
    assert found is not None
    assert (found.kind, found.value) == ("q", value), text


@given(fractions, fractions)
def test_different_rationals_have_different_keys(a: Fraction, b: Fraction) -> None:
    assert equivalent(rf"\frac{{{a.numerator}}}{{{a.denominator}}}", f"{b.numerator}/{b.denominator}") == (a == b)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(1, 5), st.randoms())
def test_a_polynomial_is_its_product_of_linear_factors(roots: list[int], lead: int, chance: random.Random) -> None:
    coefficients = [lead]
    for r in roots:
        coefficients = [a - r * b for a, b in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    degree = len(roots)
    terms = [f"{c}x^{{{degree - i}}}" for i, c in enumerate(coefficients)]
    chance.shuffle(terms)
    factors = [f"(x-{r})" if r >= 0 else f"(x+{-r})" for r in roots]
    chance.shuffle(factors)
    expanded, factored = "+".join(terms).replace("+-", "-"), f"{lead}" + "".join(factors)
    assert equivalent(expanded, factored)
    assert not equivalent(expanded, factored + "+1")
    assert not equivalent(expanded, expanded.replace("x", "y"))


@given(st.lists(integers, min_size=2, max_size=6), st.randoms())
def test_sets_have_no_order_and_tuples_have_one(members: list[int], chance: random.Random) -> None:
    other = members.copy()
    chance.shuffle(other)
    assert equivalent(rf"\{{{','.join(map(str, members))}\}}", rf"\{{{', '.join(map(str, other))}\}}")
    assert equivalent(f"({', '.join(map(str, members))})", f"({', '.join(map(str, other))})") == (members == other)
    assert equivalent("; ".join(map(str, members)), " or ".join(map(str, other)))


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 20), st.booleans(), st.booleans()), min_size=1, max_size=5)
)
def test_a_union_is_the_set_of_its_points(spans: list[tuple[int, int, bool, bool]]) -> None:
    """Reversed, and with each interval cut in two at an inner point, a union keeps its key."""

    def text(low: int, high: int, left: bool, right: bool) -> str:
        return f"{'[' if left else '('}{low}/2, {high}/2{']' if right else ')'}"

    whole = [text(low, low + 2 * width, left, right) for low, width, left, right in spans]
    cut = [
        part
        for low, width, left, right in reversed(spans)
        for part in (text(low + width, low + 2 * width, True, right), text(low, low + width, left, True))
    ]
    assert equivalent(r" \cup ".join([*whole, "(1000, 1001)"]), r"\cup".join(["(1000, 1001)", *cut]))


@given(st.sampled_from(ANSWERS), st.sampled_from(ANSWERS), st.sampled_from(ANSWERS))
@settings(max_examples=300)
def test_equivalence_is_an_equivalence(a: str, b: str, c: str) -> None:
    assert equivalent(a, a) == (key(a) is not None)
    assert equivalent(a, b) == equivalent(b, a) == (key(a) is not None and key(a) == key(b))
    assert not (equivalent(a, b) and equivalent(b, c)) or equivalent(a, c)


def test_wrappings_that_mean_nothing_change_nothing() -> None:
    for answer in filter(_balanced, ANSWERS):
        wrapped = [f" {answer} ", f"\n{answer}\n", rf"\boxed{{{answer}}}", rf"\displaystyle {answer}"]
        wrapped += [] if "," in answer else [f"{{{answer}}}"]  # {1, 2} is a set
        assert {key(text) for text in wrapped} == {key(answer)}, answer


@given(anything, st.sampled_from(TASKS))
@settings(max_examples=500)
def test_any_text_has_a_key_that_survives_the_wire_or_none(text: str, task: str) -> None:
    found = key(text, task)
    if found is None:
        return
    again = AnswerKey.parse(str(found))
    assert again == found
    assert hash(again) == hash(found)
    assert str(again) == str(found)
    assert (again.percent, again.unit, again.decimals, again.bare) == (
        found.percent,
        found.unit,
        found.decimals,
        found.bare,
    )
    assert key(text, task) == found


@given(
    st.builds(
        AnswerKey,
        st.from_regex(r"[a-z]{1,12}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.booleans(),
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.none() | st.integers(0, 9999),
        st.none() | st.builds(AnswerKey, st.just("q"), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    )
)
def test_marks_survive_the_wire_whatever_is_in_them(one: AnswerKey) -> None:
    again = AnswerKey.parse(str(one))
    assert again == one
    assert str(again) == str(one)
    assert (again.percent, again.unit, again.decimals, again.bare) == (one.percent, one.unit, one.decimals, one.bare)


@given(st.sampled_from(ANSWERS), st.text(max_size=100), st.text("abc .\n", max_size=100))
@settings(max_examples=300)
def test_the_last_box_is_the_answer(answer: str, before: str, after: str) -> None:
    found = extract(f"{before} \\boxed{{0}} then \\boxed{{{answer}}} {after}")
    assert found == answer.strip() or key(found or "") == key(answer) or not _balanced(answer) or key(answer) is None


def _balanced(text: str) -> bool:
    plain = text.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
    depths = [plain[:i].count("{") - plain[:i].count("}") for i in range(len(plain) + 1)]
    return min(depths) >= 0 == depths[-1] and not plain.endswith("\\")


@given(anything, st.sampled_from(TASKS))
@settings(max_examples=500)
def test_extraction_is_total(text: str, task: str) -> None:
    for completion in (text, f"The answer is {text}", f"\\boxed{{{text}", f"<answer>{text}</answer>"):
        found = extract(completion, task)
        assert found is None or (found.strip() and len(found) <= 2000)
