"""Sampling by the inverse of the cumulative distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from corl_judge.engines.sampling import CHUNK, sample_tokens, uniforms
from hypothesis import given, settings
from hypothesis import strategies as st


def draw(
    logits: torch.Tensor, u: list[float], *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> tuple[list[int], list[float]]:
    """One row of logits, sampled once for every u."""
    rows = len(u)
    ids, logprobs = sample_tokens(
        logits.expand(rows, -1),
        torch.tensor(u, dtype=torch.float64),
        torch.full((rows,), temperature, dtype=torch.float64),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), top_k, dtype=torch.float64),
    )
    return ids.tolist(), logprobs.tolist()


def even(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


logit_rows = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12).map(torch.tensor)


@given(logit_rows, st.floats(0.2, 2.0))
def test_evenly_spread_numbers_give_each_token_its_share(logits: torch.Tensor, temperature: float) -> None:
    ids, logprobs = draw(logits, even(1000), temperature=temperature)
    wanted = (logits.double() / temperature).softmax(-1)
    counts = torch.bincount(torch.tensor(ids), minlength=len(logits))
    assert (counts - 1000 * wanted).abs().max() <= 1.01
    assert torch.allclose(torch.tensor(logprobs, dtype=torch.float64), wanted[ids].log(), atol=1e-5)


@given(logit_rows, st.integers(1, 12), st.floats(0.05, 1.0), st.floats(0, 1, exclude_max=True))
def test_truncated_distributions_are_renormalised(logits: torch.Tensor, top_k: int, top_p: float, u: float) -> None:
    order = logits.double().argsort(descending=True, stable=True)
    kept = order[:top_k]
    probabilities = logits.double()[kept].softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = kept[before < top_p] if top_p < 1 else kept
    (token,), (logprob,) = draw(logits, [u], top_k=top_k, top_p=top_p)
    assert token in kept.tolist()
    wanted = logits.double()[kept].log_softmax(-1)[kept.tolist().index(token)]
    assert logprob == pytest.approx(float(wanted), abs=1e-5)


@given(st.lists(st.one_of(st.just(-np.inf), st.floats(-5, 5)), min_size=1, max_size=9), st.floats(-5, 5))
def test_impossible_tokens_are_never_drawn(some: list[float], possible: float) -> None:
    logits = torch.tensor([*some, possible, -np.inf])
    largest = float(np.nextafter(1.0, 0.0))
    ids, logprobs = draw(logits, [0.0, 0.5, largest])
    assert all(logits[token] > -np.inf for token in ids)
    assert all(np.isfinite(logprobs))


def test_greedy_takes_the_most_likely_whatever_the_number_and_the_truncation() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0])
    ids, logprobs = draw(logits, [0.0, 0.999], temperature=0.0)
    assert ids == [1, 1]
    assert logprobs == pytest.approx([float(logits.double().log_softmax(-1)[1])] * 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_gets_nan_and_the_others_do_not(bad: float) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, bad, 3.0], [3.0, 2.0, 1.0]])
    ones = torch.ones(3, dtype=torch.float64)
    _, logprobs = sample_tokens(logits, 0.5 * ones, ones, ones, 0 * ones)
    assert logprobs.isnan().tolist() == [False, True, False]


def test_a_large_vocabulary_is_sampled_as_exactly_as_a_small_one() -> None:
    logits = torch.randn(50_001, generator=torch.Generator().manual_seed(1)) * 3
    logits[::3] = -torch.inf
    u = [*even(4000), 0.0, float(np.nextafter(1.0, 0.0))]
    ids, logprobs = draw(logits, u)
    probabilities = logits.double().softmax(-1)
    upper = probabilities.cumsum(-1)[ids]
    lower = upper - probabilities[ids]
    wanted = torch.tensor(u, dtype=torch.float64)
    assert (lower - 1e-6 <= wanted).all()
    assert (wanted <= upper + 1e-6).all()
    assert torch.allclose(torch.tensor(logprobs, dtype=torch.float64), probabilities[ids].log(), atol=1e-5)


def test_rows_beyond_one_chunk_are_sampled_like_the_first() -> None:
    vocab = CHUNK // 3
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(0))
    ids, _ = draw(logits[0], [0.25] * 8)
    assert len(set(ids)) == 1


def test_streams_are_repeatable_and_apart() -> None:
    assert (uniforms(5, 0, 8) == uniforms(5, 0, 8)).all()
    streams = [uniforms(seed, index, 4) for seed in (0, 1, 10, 2**70) for index in (0, 1, 2)]
    assert len({tuple(stream) for stream in streams}) == 12


@given(st.integers(0, 2**80), st.integers(0, 500), st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=50)
def test_a_stream_does_not_depend_on_how_much_of_it_is_asked_for(seed: int, index: int, short: int, more: int) -> None:
    assert (uniforms(seed, index, short + more)[:short] == uniforms(seed, index, short)).all()
