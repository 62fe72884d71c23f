"""Sampling a batch of next tokens with one uniform number a row.

By inverting the cumulative distribution a token depends on its row's logits and number alone, so it does not matter
which other rows are in the batch, nor on which device it runs, but for rounding of the logits themselves.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

__all__ = ["sample_tokens", "uniforms"]

CHUNK = 4_000_000  # logits that are in double precision at a time


def uniforms(seed: int, index: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` numbers in [0, 1) of the stream of sample `index` of a request with this seed."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.rand(count, generator=generator, dtype=torch.float64).numpy()


def sample_tokens(
    logits: torch.Tensor, u: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows] and their log-probabilities [rows] for logits [rows, vocab] and the rows' settings [rows].

    Log-probabilities are those of the distribution sampled from. Temperature 0 takes the most likely token and gives
    its log-probability at temperature 1. A row with NaN or infinite logits gets a NaN.
    """
    ids, logprobs = [], []
    size = max(1, CHUNK // logits.shape[-1])
    for rows in (slice(first, first + size) for first in range(0, len(logits), size)):
        chosen, logprob = _sample(logits[rows].double(), u[rows], temperature[rows], top_p[rows], top_k[rows])
        ids.append(chosen)
        logprobs.append(logprob)
    return torch.cat(ids), torch.cat(logprobs)


def _sample(
    logits: torch.Tensor, u: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    greedy = temperature == 0
    logits = logits / torch.where(greedy, 1.0, temperature)[:, None]
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        logits = _truncate(logits, top_p, top_k)
    logprobs = torch.log_softmax(logits, dim=-1)
    cumulative = logprobs.exp().cumsum(-1)
    total = cumulative[:, -1]
    # u * total may round up to total, and then no token would be left.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    ids = torch.where(greedy, logprobs.argmax(-1), drawn)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return ids, torch.where(total.isfinite(), chosen, torch.nan)


def _truncate(logits: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Logits outside the top k, then outside the smallest set with probability p, become -inf."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    vocab = logits.shape[-1]
    k = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    ordered = ordered.masked_fill(torch.arange(vocab, device=logits.device) >= k[:, None], -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    # The most likely token has nothing before it, so it stays whatever p is.
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p < 1)[:, None], -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
