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

CHUNK = 4_000_000  # logits worked on at a time
BLOCK = 512  # tokens whose probabilities are summed before any is looked at alone


def uniforms(seed: int, index: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` numbers in [0, 1) of the stream of sample `index` of a request with this seed."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.rand(count, generator=generator, dtype=torch.float64).numpy()


def sample_tokens(
    logits: torch.Tensor, u: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows] and their log-probabilities [rows] for logits [rows, vocab] and the rows' settings [rows].

    Log-probabilities are those of the distribution sampled from. Temperature 0 takes the most likely token, whatever
    top_p and top_k, and gives its log-probability at temperature 1. A row with NaN or infinite logits gets a NaN.
    """
    ids, logprobs = [], []
    size = max(1, CHUNK // logits.shape[-1])
    for rows in (slice(first, first + size) for first in range(0, len(logits), size)):
        chosen, logprob = _sample(logits[rows].float(), u[rows], temperature[rows], top_p[rows], top_k[rows])
        ids.append(chosen)
        logprobs.append(logprob)
    return torch.cat(ids), torch.cat(logprobs)


def _sample(
    logits: torch.Tensor, u: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    greedy = temperature == 0
    if bool((scaled := ~greedy & (temperature != 1)).any()):
        logits = logits / torch.where(scaled, temperature, 1.0)[:, None].float()
    cut = ((top_k > 0) | (top_p < 1)) & ~greedy
    if bool(cut.any()):
        logits = logits.clone()
        logits[cut] = _truncate(logits[cut], top_p[cut], top_k[cut])
    highest, most_likely = logits.max(-1, keepdim=True)
    # Single precision for each weight, double for their sums: as exact as the logits are, at an eighth of the time.
    weights = (logits - highest).exp_()
    size = min(BLOCK, logits.shape[-1])
    if short := -logits.shape[-1] % size:
        weights = torch.nn.functional.pad(weights, (0, short))
    drawn, total = _invert(weights.view(len(logits), -1, size), u)
    ids = torch.where(greedy, most_likely[:, 0], drawn.clamp(max=logits.shape[-1] - 1))
    chosen = (logits.gather(-1, ids[:, None]) - highest)[:, 0].double() - total.log()
    return ids, torch.where(total.isfinite(), chosen, torch.nan)


def _invert(weights: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices [rows] where the cumulative sum of weights [rows, blocks, size] passes u times the total [rows].

    An index of weight zero is never given, whatever rounding does: `right=True` passes over it at any target from zero
    up to, but not including, the sum.
    """
    size = weights.shape[-1]
    blocks = weights.sum(-1, dtype=torch.float64)
    upto = blocks.cumsum(-1)
    total = upto[:, -1:]
    target = _below(u[:, None] * total, total)
    block = torch.searchsorted(upto, target, right=True).clamp(max=blocks.shape[-1] - 1)
    before = upto.gather(-1, block) - blocks.gather(-1, block)
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, size))[:, 0].double().cumsum(-1)
    rest = _below((target - before).clamp(min=0), inside[:, -1:])
    within = torch.searchsorted(inside, rest, right=True).clamp(max=size - 1)
    return (block * size + within)[:, 0], total[:, 0]


def _below(values: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    return torch.minimum(values, torch.nextafter(limit, torch.zeros_like(limit)))


def _truncate(logits: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Logits outside the top k, then outside the smallest set with probability p, become -inf."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    vocab = logits.shape[-1]
    k = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    ordered = ordered.masked_fill(torch.arange(vocab, device=logits.device) >= k[:, None], -torch.inf)
    probabilities = ordered.softmax(-1, dtype=torch.float64)
    before = probabilities.cumsum(-1) - probabilities
    # The most likely token has nothing before it, so it stays whatever p is.
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p < 1)[:, None], -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
