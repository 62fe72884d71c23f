"""What holds for every vote, over answers chosen to be confused with each other."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from corl import wire
from corl.answers import AnswerKey, key
from corl.plurality import Spelling, plurality
from corl.rewards import collective, combine, rewards
from corl.votes import Histogram, Ties, Vote, attach, tally
from corl.wire_votes import from_wire, histogram_from_wire, to_wire

CONFUSABLE = [
    *[
        "50",
        "50.0",
        "50\\%",
        "50.0\\%",
        "0.5",
        "1/2",
        "\\frac{1}{2}",
        "0.500",
        "50\\text{ apples}",
        "\\$50",
        "50\\text{ cm}",
    ],
    *["1/3", "\\frac{1}{3}", "0.333", "0.3333", "0.3330", "33.3\\%", "33.3", "33.33\\%", "0.333\\text{ m}", "333/1000"],
    *[
        "5",
        "5\\text{ cm}",
        "5\\text{ m}",
        "500\\text{ cm}",
        "5_8",
        "x=5",
        "y=5",
        "\\sqrt{2}",
        "1.414",
        "1.41421",
        "1414/1000",
    ],
    *["2", "2\\text{ hours}", "120\\text{ minutes}", "120", "1/16", "0.062", "0.063", "0.0625", "", " "],
]

# A few spellings, each several times, meet more often than many would.
pools = st.lists(st.sampled_from(CONFUSABLE), min_size=1, max_size=6, unique=True)
groups = pools.flatmap(lambda pool: st.lists(st.sampled_from(pool) | st.none(), max_size=24))
policies = st.fixed_dictionaries(
    {
        "threshold": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "min_parsed": st.integers(1, 4),
        "ties": st.sampled_from(["abstain", "first"]),
    }
)


def shown(vote: Vote) -> tuple[object, ...]:
    """Everything about a vote, marks of keys too, which equality of keys does not see."""
    return (vote, str(vote.key), sorted(map(str, vote.keys)))


@given(groups, st.randoms(use_true_random=False), st.integers(1, 4), st.sampled_from([0.0, 0.5]))
def test_order_does_not_matter(answers: list[str | None], random: object, least: int, threshold: float) -> None:
    shuffled = list(answers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (tally(a, min_parsed=least, threshold=threshold) for a in (answers, shuffled))
    assert shown(one) == shown(other)


@given(groups, policies)
def test_vote_and_rewards_use_one_relation(answers: list[str | None], policy: dict[str, object]) -> None:
    vote = tally(answers, **policy)  # type: ignore[arg-type]
    if vote.keys:
        assert sum(attach(a and key(a), vote) for a in answers) == vote.count
        assert vote.key in vote.keys
        assert attach(key(str(vote.answer)), vote)
    got = rewards(answers, vote)
    if vote.labeled:
        assert sum(got) == vote.count  # type: ignore[arg-type]
        assert all(reward == 0.0 for a, reward in zip(answers, got, strict=True) if not (a and a.strip()))
    else:
        assert got == [None] * len(answers)


@given(groups, policies)
def test_a_vote_is_the_plurality(answers: list[str | None], policy: dict[str, object]) -> None:
    vote = tally(answers, **policy)  # type: ignore[arg-type]
    counts = Counter(k for a in answers if a is not None and (k := key(a)) is not None)
    assert vote.parsed == counts.total()
    assert vote.total == len(answers)
    assert vote.count >= max(counts.values(), default=0)
    assert vote.share == (vote.count / vote.parsed if vote.parsed else 0.0)
    if vote.labeled:
        assert vote.share >= policy["threshold"]  # type: ignore[operator]
        assert vote.parsed >= policy["min_parsed"]  # type: ignore[operator]
        if vote.runner_up is not None and policy["ties"] == "abstain":
            assert vote.runner_up.count < vote.count


numbers = st.sampled_from(["1/3", "333/1000", "3333/10000", "1/2", "50", "1"])
units = st.sampled_from([None, "cm", "apples"])
places = st.sampled_from([None, 1, 3, 4])
bare = st.none() | st.builds(lambda form, unit: AnswerKey("q", form, unit=unit), numbers, units)
marked = st.builds(AnswerKey, st.just("q"), numbers, st.booleans(), units, places, bare)


@given(st.lists(marked, max_size=12), st.randoms(use_true_random=False))
def test_whatever_the_marks_vote_and_membership_agree(keys: list[AnswerKey], random: object) -> None:
    """Also for keys with marks that no answer gives today."""
    spellings = [Spelling(str(key), key, 1, 1, position) for position, key in enumerate(keys)]
    vote = plurality(spellings, len(keys), min_parsed=1)
    random.shuffle(spellings)  # type: ignore[attr-defined]
    assert shown(plurality(spellings, len(keys), min_parsed=1)) == shown(vote)
    if vote.keys:
        assert sum(attach(key, vote) for key in keys) == vote.count


CONTRADICTIONS = [
    ("50", "0.5"),
    ("50", "1/2"),
    ("50\\text{ apples}", "50\\%"),
    ("50\\text{ apples}", "50\\text{ cm}"),
    ("5\\text{ cm}", "5\\text{ m}"),
    ("5\\text{ apples}", "5\\text{ m}"),
    ("333/1000", "1/3"),
    ("1414/1000", "\\sqrt{2}"),
    ("y=2x+1", "z=2x+1"),
]


@given(groups)
def test_two_different_answers_never_both_win(answers: list[str | None]) -> None:
    """However the group voted, and whether or not it gave these answers."""
    vote = tally(answers, min_parsed=1, ties="first")
    for one, other in CONTRADICTIONS:
        assert not (attach(key(one), vote) and attach(key(other), vote)), (one, other, vote)


@given(groups, policies)
def test_a_histogram_is_as_good_as_the_list(answers: list[str | None], policy: dict[str, object]) -> None:
    direct = tally(answers, **policy)  # type: ignore[arg-type]
    stored = Histogram.from_bytes(Histogram.of(answers).to_bytes())
    assert shown(stored.tally(**policy)) == shown(direct)  # type: ignore[arg-type]
    sent = to_wire(direct, histogram=stored)
    received = wire.Vote.model_validate_json(sent.model_dump_json())
    assert shown(from_wire(received)) == shown(direct)
    again = histogram_from_wire(received)
    assert again is not None
    assert shown(again.tally(**policy)) == shown(direct)  # type: ignore[arg-type]


@given(groups, st.integers(1, 5), st.sampled_from([Fraction(1, 3), Fraction(7), Fraction(1, 10**20)]))
def test_only_the_proportion_of_weights_matters(answers: list[str | None], times: int, unit: Fraction) -> None:
    plain = tally(answers, min_parsed=1)
    repeated = tally(answers * times, min_parsed=1)
    weighted = tally(answers, weights=[unit] * len(answers), min_parsed=1)
    assert plain.status == repeated.status == weighted.status
    assert plain.keys == repeated.keys == weighted.keys
    assert repeated.count == plain.count * times
    assert weighted.count == plain.count * unit


@given(groups, st.data(), st.sampled_from(["abstain", "first"]))
def test_a_whole_weight_is_that_many_answers(answers: list[str | None], data: st.DataObject, ties: Ties) -> None:
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(answers), max_size=len(answers)))
    repeated = [a for a, weight in zip(answers, weights, strict=True) for _ in range(weight)]
    weighted = tally(answers, weights=weights, min_parsed=1, ties=ties)
    assert shown(weighted) == shown(tally(repeated, min_parsed=1, ties=ties))


@given(st.lists(groups, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_teachers_are_combined_in_any_order_by_the_same_relation(
    teachers: list[list[str | None]], random: object
) -> None:
    votes = [tally(answers) for answers in teachers]
    combined = combine(votes)
    random.shuffle(votes)  # type: ignore[attr-defined]
    assert shown(combine(votes)) == shown(combined)
    for one, other in CONTRADICTIONS:
        assert not (attach(key(one), combined) and attach(key(other), combined))
    if combined.labeled and len(votes) > 1:
        agreeing = sum(vote.labeled and attach(vote.key, combined) for vote in votes)
        assert agreeing == combined.count


@given(st.dictionaries(st.sampled_from("abcd"), groups, min_size=1), st.sampled_from(["uniform", "share"]))
def test_the_collective_is_order_independent_and_fair(members: dict[str, list[str | None]], weighting: str) -> None:
    histograms = {name: Histogram.of(answers) for name, answers in members.items()}
    backwards = dict(reversed(histograms.items()))
    assert shown(collective(histograms, weighting)) == shown(collective(backwards, weighting))  # type: ignore[arg-type]
    if weighting == "uniform":
        everyone = [a for answers in members.values() for a in answers]
        assert shown(collective(histograms)) == shown(tally(everyone))
