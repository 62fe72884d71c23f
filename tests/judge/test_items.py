"""Work items and results: nothing is lost in packing, equal work has equal keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from corl_judge.engines.base import Sample
from corl_judge.items import Rollout, SampledItem, WorkItem, seed_of
from corl_judge.packing import pack, unpack
from corl_judge.votebook import VoteKey
from hypothesis import given
from hypothesis import strategies as st

from corl.wire import ErrorBody, Message, RolloutsResponse, Sampling, WeightsTag

TAG = WeightsTag(incarnation=1, version=7, digest="d")
ITEM = WorkItem(
    purpose="train",
    problem_id="p1",
    prompt="2 + 2",
    prompt_token_ids=[1, 2, 3],
    task="math",
    options=None,
    n=4,
    sampling=Sampling(),
    wanted=TAG,
    seed=5,
    run="r",
    step=7,
    vote=VoteKey("r", 7, "p1"),
)

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
floats = st.floats(-100, 0, width=32)
prompts = st.one_of(
    st.text(min_size=1),
    st.lists(st.builds(Message, role=st.sampled_from(["user", "system"]), content=st.text()), min_size=1, max_size=3),
)


@given(ids, prompts, st.none() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()), st.integers(0, 2**48))
def test_an_item_survives_packing(token_ids: list[int], prompt: Any, options: Any, seed: int) -> None:
    item = replace(ITEM, prompt=prompt, prompt_token_ids=token_ids, options=options, seed=seed)
    assert WorkItem.from_bytes(item.to_bytes()) == item


@given(ids)
def test_a_prompt_of_token_ids_is_stored_once(token_ids: list[int]) -> None:
    item = replace(ITEM, prompt=token_ids, prompt_token_ids=token_ids)
    back = WorkItem.from_bytes(item.to_bytes())
    assert back.prompt == back.prompt_token_ids == token_ids


@given(st.lists(st.tuples(ids, st.text(), st.none() | st.text()), max_size=5), st.data())
def test_a_result_survives_packing_to_the_bit(rows: list[Any], data: st.DataObject) -> None:
    rollouts = []
    for token_ids, text, answer in rows:
        logprobs = data.draw(st.lists(floats, min_size=len(token_ids), max_size=len(token_ids)))
        rollouts.append(Rollout(Sample(token_ids, logprobs, text, "stop"), answer))
    result = SampledItem(TAG, b"[0,[]]", rollouts)
    assert SampledItem.from_bytes(result.to_bytes()) == result


def test_log_probabilities_keep_float32() -> None:
    logprobs = [float(np.float32(-0.1)), -0.1]
    sampled = SampledItem(TAG, b"", [Rollout(Sample([1, 2], logprobs, "x", "stop"), None)])
    [rollout] = SampledItem.from_bytes(sampled.to_bytes()).rollouts
    assert rollout.sample.logprobs == [float(np.float32(-0.1))] * 2


def test_bulk_is_compact() -> None:
    sample = Sample(list(range(1000)), [-1.5] * 1000, "", "stop")
    assert len(SampledItem(TAG, b"", [Rollout(sample, None)] * 8).to_bytes()) < 8 * 8_100


@pytest.mark.parametrize(
    "change",
    [
        {"run": None},
        {"step": 8},
        {"purpose": "eval"},
        {"problem_id": "p2"},
        {"prompt_token_ids": [1, 2]},
        {"task": "text"},
        {"options": ["A"]},
        {"options": {"A": "x"}},
        {"n": 5},
        {"sampling": Sampling(temperature=0.5)},
        {"wanted": WeightsTag(incarnation=1, version=7, digest="e")},
    ],
    ids=lambda c: next(iter(c)),
)
def test_everything_that_makes_it_other_work_changes_the_key(change: dict[str, Any]) -> None:
    assert replace(ITEM, **change).key("a") != ITEM.key("a")
    assert ITEM.key("a") != ITEM.key("b")
    assert ITEM.key("a", attempt=1) != ITEM.key("a")


@pytest.mark.parametrize(
    "change",
    [
        {"wanted": WeightsTag(incarnation=2, version=9, digest="d")},
        {"seed": 6},
        {"submitted_at": 9.0},
        {"request_id": "x"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_nothing_else_does(change: dict[str, Any]) -> None:
    """Above all not the version: an exact replay under an equal digest finds its stored result."""
    assert replace(ITEM, **change).key("a") == ITEM.key("a")


def test_seeds_are_a_function_of_all_their_parts_and_fit_every_engine() -> None:
    base = (42, "a", 7, "p1", "train")
    others = [(43, *base[1:]), (42, "b", *base[2:]), (42, "a", 8, "p1", "train"), (42, "a", 7, "p2", "train")]
    seeds = [seed_of(*parts) for parts in [base, *others, (42, "a", 7, "p1", "vote")]]  # type: ignore[arg-type]
    assert len(set(seeds)) == 6
    assert seeds[0] == seed_of(42, "a", 7, "p1", "train")
    assert all(0 <= seed < 2**48 for seed in seeds)


def test_responses_at_rest_come_back_whole() -> None:
    response = RolloutsResponse.model_validate(
        {
            "member": "a",
            "run": "r",
            "step": 1,
            "weights": TAG.model_dump(),
            "problems": [
                {
                    "problem_id": "p",
                    "prompt_token_ids": [1, 2],
                    "weights": TAG.model_dump(),
                    "vote": {"status": "none"},
                    "completions": [
                        {"token_ids": [3], "logprobs": [-0.5], "text": "t", "finish_reason": "stop", "answer": None}
                    ],
                }
            ],
        }
    )
    assert unpack(pack(response)) == response
    error = ErrorBody(title="t", status=502)
    assert unpack(pack(error)) == error
