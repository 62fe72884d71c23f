"""Rewards that a model gives itself, from its own predictive distribution on its own completions.

entropy: minus the mean over the completion's tokens of H(p) (RENT, arXiv 2505.22660). certainty: the mean of
KL(U || p) = logsumexp(z) - mean(z) - log V, z the logits over the temperature (self-certainty; Intuitor, arXiv
2505.19590). Both need the whole vocabulary, so they are computed here and not in the judge, which has a token's own
log-probability only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["certainty", "masked_mean", "self_certainty"]


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of each row of (B, T) where the mask is set; 0 for a row without any."""
    mask = mask.to(values.dtype)
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)


def certainty(logits: torch.Tensor) -> torch.Tensor:
    """KL(U || softmax(logits)) over the last axis, in nats."""
    import math

    import torch

    logits = logits.float()
    return torch.logsumexp(logits, -1) - logits.mean(-1) - math.log(logits.shape[-1])


def self_certainty(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    *,
    temperature: float,
    batch_size: int,
) -> torch.Tensor:
    """Certainty of each of the last `logits_to_keep` positions of (B, L) -> (B, logits_to_keep). No gradient."""
    import torch

    rows = []
    with torch.no_grad():
        for begin in range(0, input_ids.shape[0], batch_size):
            part = slice(begin, begin + batch_size)
            logits = model(
                input_ids=input_ids[part], attention_mask=attention_mask[part], logits_to_keep=logits_to_keep + 1
            ).logits
            # The logits at a position are of the next token; the last of them is of a token that is not there.
            rows.append(certainty(logits[:, -logits_to_keep - 1 : -1] / temperature))
    return torch.cat(rows)
