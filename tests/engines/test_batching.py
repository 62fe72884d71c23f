"""Continuous batching over a tiny model: what a sample is does not depend on what it shares a batch with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from corl_judge.engines import kvcache
from corl_judge.engines.base import EngineError
from corl_judge.engines.batching import Batcher, Job, Row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from corl.wire import Sampling

EOS = 2
Outcomes = dict[int, list[Row] | BaseException]


@pytest.fixture(scope="module")
def model(llama_checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(llama_checkpoint, dtype=torch.float32).eval()


def batcher(model: Any, max_rows: int = 64, max_tokens: int = 8192) -> Batcher:
    return Batcher(model, eos=[EOS], max_rows=max_rows, max_tokens=max_tokens)


def prompt(length: int) -> list[int]:
    return [4 + (7 * i + length) % 90 for i in range(length)]


def job(outcomes: Outcomes, key: int, length: int, n: int, max_tokens: int, temperature: float = 1.0) -> Job:
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    return Job(prompt(length), n, sampling, seed=key, done=functools.partial(outcomes.__setitem__, key))


def run(engine: Batcher, jobs: Sequence[Job]) -> None:
    for each in jobs:
        engine.add(each)
    while engine.busy:
        engine.step()


def rows(outcome: list[Row] | BaseException) -> list[Row]:
    assert not isinstance(outcome, BaseException), outcome
    return outcome


requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 6), st.integers(1, 24), st.integers(0, 8)), min_size=1, max_size=8
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests, st.integers(1, 20), st.integers(100, 2000))
def test_samples_do_not_depend_on_the_batch(
    model: Any, asked: list[tuple[int, int, int, int]], max_rows: int, max_tokens: int
) -> None:
    """Requests of any shape, arriving at any time, in a batch of any size."""
    together: Outcomes = {}
    engine = batcher(model, max_rows, max_tokens)
    for key, (length, n, count, steps) in enumerate(asked):
        engine.add(job(together, key, length, n, count))
        for _ in range(steps):
            engine.step()
    while engine.busy:
        engine.step()
    for key, (length, n, count, _) in enumerate(asked):
        alone: Outcomes = {}
        run(batcher(model), [job(alone, key, length, n, count)])
        for i, (one, other) in enumerate(zip(rows(alone[key]), rows(together[key]), strict=True)):
            assert one.index == other.index == i
            assert one.token_ids == other.token_ids
            assert one.finish_reason == other.finish_reason
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_sample_i_is_the_same_for_any_n(model: Any) -> None:
    few: Outcomes = {}
    many: Outcomes = {}
    run(batcher(model), [job(few, 0, 10, 2, 12)])
    run(batcher(model), [job(many, 0, 10, 9, 12)])
    assert [row.token_ids for row in rows(few[0])] == [row.token_ids for row in rows(many[0])[:2]]


def test_keys_and_values_stay_within_the_budget(model: Any) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model, max_rows=50, max_tokens=600)
    for key in range(12):
        engine.add(job(outcomes, key, 5 + 9 * (key % 5), 6, 4 + 10 * (key % 3)))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.held)
    assert 300 < most <= 600
    assert all(len(rows(outcomes[key])) == 6 for key in range(12))


def test_more_samples_than_rows_are_all_made(model: Any) -> None:
    outcomes: Outcomes = {}
    run(batcher(model, max_rows=3), [job(outcomes, 0, 8, 20, 6)])
    assert [row.index for row in rows(outcomes[0])] == list(range(20))


def test_a_single_token_does_not_wait_for_a_full_batch(model: Any) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model, max_rows=2)
    engine.add(job(outcomes, 0, 8, 40, 30))
    engine.step()
    engine.add(job(outcomes, 1, 8, 1, 1))
    engine.step()
    assert 1 in outcomes
    assert 0 not in outcomes


def test_a_cancelled_job_leaves_at_the_next_step(model: Any) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model)
    doomed = job(outcomes, 0, 8, 30, 200)
    engine.add(doomed)
    engine.step()
    assert engine.held > 0
    doomed.cancelled = True
    engine.step()
    assert not engine.busy
    assert engine.held == 0


class Faults:
    """Raises from a model's next prefill or decode when told to."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.error: Exception | None = None
        self.decode = False
        self.nan = False

        @functools.wraps(forward)
        def faulty(**arguments: Any) -> Any:
            if self.error is not None and self.decode == (arguments["input_ids"].shape[1] == 1):
                error, self.error = self.error, None
                raise error
            output = forward(**arguments)
            if self.nan:
                output.logits[:1] = torch.nan
            return output

        self.forward = faulty


@pytest.fixture
def faults(model: Any, monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults(model.forward)
    monkeypatch.setattr(model, "forward", faults.forward)
    return faults


OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize("error", [OOM, RuntimeError("DefaultCPUAllocator: can't allocate memory"), ValueError("what")])
def test_a_failed_decode_ends_its_batch_and_nothing_else(model: Any, faults: Faults, error: Exception) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model, max_rows=4)
    engine.add(job(outcomes, 0, 8, 30, 30))  # more than the batch holds, so that the other one waits
    engine.add(job(outcomes, 1, 8, 2, 3))
    engine.step()
    faults.error, faults.decode = error, True
    engine.step()
    assert isinstance(outcomes[0], EngineError)
    if not isinstance(error, ValueError):
        assert "out of memory" in str(outcomes[0])
        assert "max_num_seqs" in str(outcomes[0])
    while engine.busy:
        engine.step()
    assert len(rows(outcomes[1])) == 2


def test_a_failed_prefill_ends_only_those_that_were_in_it(model: Any, faults: Faults) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model)
    engine.add(job(outcomes, 0, 8, 4, 20))
    engine.step()
    faults.error = OOM
    engine.add(job(outcomes, 1, 8, 2, 3))
    while engine.busy:
        engine.step()
    assert isinstance(outcomes[1], EngineError)
    alone: Outcomes = {}
    run(batcher(model), [job(alone, 0, 8, 4, 20)])
    assert [row.token_ids for row in rows(outcomes[0])] == [row.token_ids for row in rows(alone[0])]


def test_a_batch_that_cannot_be_joined_is_given_up_whole(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys and values of the rows that ran are half used up then."""
    outcomes: Outcomes = {}
    engine = batcher(model)
    engine.add(job(outcomes, 0, 8, 4, 40))
    engine.step()
    calls = 0
    gather = kvcache._gather

    def fail_at_the_third(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OOM
        return gather(*arguments)

    monkeypatch.setattr(kvcache, "_gather", fail_at_the_third)
    engine.add(job(outcomes, 1, 8, 2, 3))
    engine.step()
    assert isinstance(outcomes[0], EngineError)
    assert isinstance(outcomes[1], EngineError)
    assert not engine.busy
    run(engine, [job(outcomes, 2, 8, 2, 3)])
    assert len(rows(outcomes[2])) == 2


def test_logits_that_are_not_finite_are_an_error_and_no_sample(model: Any, faults: Faults) -> None:
    outcomes: Outcomes = {}
    faults.nan = True
    run(batcher(model), [job(outcomes, 0, 8, 1, 5), job(outcomes, 1, 9, 3, 5)])
    assert isinstance(outcomes[0], EngineError)
    assert "not finite" in str(outcomes[0])


def test_an_error_of_the_device_is_raised(model: Any, faults: Faults) -> None:
    outcomes: Outcomes = {}
    engine = batcher(model)
    engine.add(job(outcomes, 0, 8, 2, 5))
    faults.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError):
        engine.step()
    assert isinstance(outcomes[0], EngineError)
