"""How large a model in a local folder is, from its files' headers alone, and how much memory it needs at least."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from corl.cohort_models import TrainingSettings
from corl.weights import SnapshotError, read_header

__all__ = ["ModelSize", "checkpoint_bytes", "judge_bytes", "model_size", "trainer_bytes"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TRAINED = 4
"""Bytes of a trained weight: float32, whatever the dtype of the passes."""
ADAM_STATES = 2
"""First and second moments, in the parameters' own type as torch keeps them."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`parameters` counts stored tensors once and `stored_bytes` is what they take in the checkpoint's own types, which
    is also the size of a published snapshot; `exact` is False where both follow from config.json alone."""

    architecture: str
    parameters: int
    stored_bytes: int
    exact: bool


def model_size(folder: Path) -> ModelSize | None:
    """Size of the model in a folder; None if neither its weights nor its config say."""
    try:
        config = json.loads((folder / "config.json").read_text())
        architecture = str((config.get("architectures") or [config.get("model_type", "?")])[0])
    except (OSError, ValueError, AttributeError, IndexError):
        return None
    files = sorted(folder.glob("*.safetensors"))
    try:
        if files:
            tensors = [meta for file in files for meta in read_header(file)]
            count = sum(prod(meta.shape) for meta in tensors)
            return ModelSize(architecture, count, sum(meta.end - meta.begin for meta in tensors), True)
        count = _from_config(config)
        dtype = str(config.get("dtype") or config.get("torch_dtype"))
        return ModelSize(architecture, count, count * BYTES.get(dtype, 4), False)
    except (SnapshotError, OSError, KeyError, TypeError):
        return None


def _from_config(config: dict[str, object]) -> int:
    """A gated-MLP decoder's matrices, which is all but a fraction of a percent of its parameters."""

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name, default)
        if not isinstance(value, int):
            raise KeyError(name)
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    head = number("head_dim", hidden // heads)
    keys = number("num_key_value_heads", heads) * head
    layer = 2 * hidden * heads * head + 2 * hidden * keys + 3 * hidden * number("intermediate_size")
    embeddings = number("vocab_size") * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return number("num_hidden_layers") * layer + embeddings


def judge_bytes(size: ModelSize, engine: str, options: Mapping[str, Any]) -> int:
    """The serving weights, in the type of `options` (`engine_options`) or else the checkpoint's.

    The transformers engine holds the new ones beside them while it loads; vLLM loads layer by layer. The KV cache comes
    on top.
    """
    served = size.parameters * BYTES.get(str(options.get("dtype")), 0) or size.stored_bytes
    return 2 * served if engine == "transformers" else served


def trainer_bytes(size: ModelSize, training: TrainingSettings) -> int:
    """Weights, and with full fine-tuning gradients and Adam's states, all in float32. Activations and logits come on
    top."""
    copies = 1 if training.lora is not None else 2 + ADAM_STATES
    return copies * size.parameters * TRAINED


def checkpoint_bytes(size: ModelSize) -> int:
    """One checkpoint of a full fine-tuning: weights and Adam's states. With LoRA only the adapter's are in it."""
    return (1 + ADAM_STATES) * size.parameters * TRAINED
