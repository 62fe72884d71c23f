"""How large a model in a local folder is, from its files' headers alone, and how much memory it needs at least."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from corl.cohort_models import TrainingSettings
from corl.weights import SnapshotError, read_header

__all__ = ["ModelSize", "judge_bytes", "model_size", "trainer_bytes"]

BYTES = {"float32": 4, "bfloat16": 2}
ADAM_STATES = 2
"""First and second moments, in the parameters' own type as torch keeps them."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`parameters` counts stored tensors once; `exact` is False where it follows from config.json alone."""

    architecture: str
    parameters: int
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
            tensors = (meta for file in files for meta in read_header(file))
            return ModelSize(architecture, sum(prod(meta.shape) for meta in tensors), True)
        return ModelSize(architecture, _from_config(config), False)
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


def judge_bytes(size: ModelSize, training: TrainingSettings) -> int:
    """Weights twice: the serving ones and the new ones while they load. The KV cache comes on top."""
    return 2 * size.parameters * BYTES[training.dtype]


def trainer_bytes(size: ModelSize, training: TrainingSettings) -> int:
    """Weights, and with full fine-tuning gradients and Adam's states. Activations and logits come on top."""
    copies = 1 if training.lora is not None else 2 + ADAM_STATES
    return copies * size.parameters * BYTES[training.dtype]
