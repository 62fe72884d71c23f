"""The two cohorts of the check: the nano example on this device, and two random Llamas in bfloat16.

The random pair is there for its size and its dtype. It learns nothing, but its updates are real ones: each token that
it can write says `\\boxed{k}` for one of four k, so that whatever it writes has an answer, its vote is a label more
often than not, and its completions differ in their reward.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FULL", "SMALL", "Size", "device_fields", "nano_cohort", "random_cohort"]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "arithmetic" / "cohort.yaml"
STEPS = 10
ANSWERS = 4
SPECIAL = ("<|pad|>", "<|end|>", "<|unk|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SERVICE_DEADLINE_S = 180  # a service that fails ends the check soon
WAIT_S = 120


@dataclass(frozen=True)
class Size:
    """Of the random Llamas, and of their steps."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    problems_per_step: int
    n: int
    max_tokens: int

    @property
    def completions(self) -> int:
        return self.problems_per_step * self.n


FULL = Size(hidden=768, layers=12, heads=12, kv_heads=4, vocab=49_152, problems_per_step=8, n=8, max_tokens=256)
"""151 million parameters."""
SMALL = Size(hidden=256, layers=4, heads=4, kv_heads=2, vocab=4_096, problems_per_step=4, n=8, max_tokens=32)
"""5 million, for a CPU."""


def device_fields(device: str) -> dict[str, Any]:
    """`devices` of a member: both its processes on the first device that is visible, so that one is enough."""
    if device != "cuda":
        return {}
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    return {"devices": {"judge": first, "trainer": first}}


def nano_cohort(folder: Path, device: str) -> Path:
    """The example's cohort file with absolute paths, for `device`; everything that decides what is learned is kept."""
    import yaml

    cohort = yaml.safe_load(EXAMPLE.read_text())
    cohort["problems"].pop("views")
    for name in ("train", "heldout"):
        cohort["problems"][name]["path"] = str(EXAMPLE.parent / cohort["problems"][name]["path"])
    for member in cohort["members"].values():
        member["model"] = str(EXAMPLE.parent / member["model"])
        member["engine_options"] = {"device": device}
        member |= device_fields(device)
    rollouts = cohort["rollouts"]
    cohort["training"] |= {
        "device": device,
        "service_deadline_s": SERVICE_DEADLINE_S,
        # One micro-batch, as on a CPU: by default a device gets eight completions at a time.
        "per_device_train_batch_size": rollouts["problems_per_step"] * rollouts["n"],
        "gradient_checkpointing": False,
    }
    cohort["vote"] = {"wait_s": WAIT_S}
    return _written(folder, cohort)


def random_cohort(folder: Path, device: str, size: Size) -> Path:
    """Two random Llamas that judge each other, their problems, and the cohort file.

    The settings are the ones that a GPU gets by default (bfloat16, micro-batches of eight, gradient checkpointing),
    on a CPU too. Prompts have different lengths, so that padding is in every batch.
    """
    names = ("a", "b")
    for seed, name in enumerate(names):
        random_llama(folder / name, size, seed)
    numbers = random.Random(0)
    rows = [
        {"problem_id": f"p{i}", "problem": "+".join(str(numbers.randrange(100)) for _ in range(numbers.randint(1, 20)))}
        for i in range(STEPS * size.problems_per_step)
    ]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"device": device, "dtype": "bfloat16"}
    cohort = {
        "name": "random",
        "members": {
            name: {"model": name, "engine": "transformers", "engine_options": options, **device_fields(device)}
            for name in names
        },
        "problems": {"train": {"path": "problems.jsonl"}},
        "reward": "peer",
        "vote": {"wait_s": WAIT_S},
        "rollouts": {
            "problems_per_step": size.problems_per_step,
            "n": size.n,
            "max_tokens": size.max_tokens,
        },
        "training": {
            "steps": STEPS,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "dtype": "bfloat16",
            "device": device,
            "per_device_train_batch_size": 8,
            "gradient_checkpointing": True,
            "service_deadline_s": SERVICE_DEADLINE_S,
        },
    }
    return _written(folder, cohort)


def random_llama(folder: Path, size: Size, seed: int) -> None:
    """A Hugging Face folder: weights as they are initialised, in bfloat16, and a tokenizer whose words are answers."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    letters = [*SPECIAL, *"0123456789+"]
    words = [*letters, *(f"\\boxed{{{i % ANSWERS}}} {i:x}\n" for i in range(len(letters), size.vocab))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size.vocab,
            hidden_size=size.hidden,
            intermediate_size=8 * size.hidden // 3,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    ).to(torch.bfloat16).save_pretrained(folder)


def _written(folder: Path, cohort: Mapping[str, Any]) -> Path:
    import yaml

    path = folder / "cohort.yaml"
    path.write_text(yaml.safe_dump(dict(cohort), sort_keys=False))
    return path
