"""Teach the base models of the nano cohort: tiny decoders that add, each with its family's own misconception.

    python examples/arithmetic/make_models.py                      # all four, two to five minutes each on one core
    python examples/arithmetic/make_models.py llama qwen --out /tmp/models

A base model is taught on a corpus in which part of the answers follow what its *family* wrongly believes about
addition. Where the misconception bites, slightly more than half of the model's samples are wrong in the same way, so
its plurality vote is systematically wrong there: the situation in which a model's own vote misleads it and the vote
of a model that errs elsewhere does not. Families differ in architecture, tokenizer, chat template and misconception;
`llama2` is `llama` with another seed. What a completion says is the same for all: `\\boxed{085}`, then the end token.

Each model is one Hugging Face folder (safetensors in float32, tokenizer with chat template, generation config) that
transformers and vLLM load as they load any other. The head size is 32, the smallest that vLLM's CPU attention takes.

Left out on purpose: validation, checkpoints, mixed precision, anything configurable that the four models do not need.
The result repeats bit for bit on one machine with one torch build, and only closely on another.
"""

import argparse
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # at this size more threads only wait for each other

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MISLED = 0.57  # share of the corpus that follows the misconception
NOISE = 0.05  # share of the corpus whose answer is off at random
HEAD_DIM = 32


# ---- what a family wrongly believes a + b to be ----------------------------------------------------------------------


def drops_carry(a: int, b: int) -> int:
    """Forgets the carry when a unit is large."""
    return (a // 10 + b // 10) * 10 + (a + b) % 10 if a % 10 >= 6 or b % 10 >= 8 else a + b


def invents_carry(a: int, b: int) -> int:
    """Adds a ten too many for every third ten of the first number."""
    return a + b + 10 if a // 10 % 3 == 0 else a + b


def counts_one_too_many(a: int, b: int) -> int:
    """Counts on from the wrong number when the second one has a small unit."""
    return a + b + 1 if 1 <= b % 10 <= 4 else a + b


# ---- chat templates and tokenizers -----------------------------------------------------------------------------------

ONE_TOKEN_A_TURN = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('the roles are user and assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('the roles are user and assistant') }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def cut_by_words(special: tuple[str, ...], words: tuple[str, ...], chat_template: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is a list of words, the longest that fits first.

    The special tokens have the first ids: padding, end of sequence, unknown, then the marks of a turn. Each character
    that no word covers becomes the unknown token.
    """
    pad, end, unknown, *turns = special
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(special + words)}, unk_token=unknown))
    longest_first = [re.escape(word) for word in sorted(words, key=len, reverse=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*longest_first, r"[\s\S]"])), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token=unknown, additional_special_tokens=turns,
        clean_up_tokenization_spaces=False, model_max_length=512, padding_side="left", chat_template=chat_template,
    )  # fmt: skip


def byte_pairs(words: tuple[str, ...], chat_template: str) -> PreTrainedTokenizerFast:
    """Qwen's own byte-level BPE with a vocabulary of the 256 bytes and `words`: digits one by one, as there.

    It has to be this class: transformers gives every checkpoint of the type qwen2 a `Qwen2Tokenizer`, whatever its
    tokenizer files say.
    """
    merges = [(word[:i], word[i]) for word in words for i in range(1, len(word))]
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in merges]
    return Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges,
        pad_token="<|endoftext|>", unk_token="<|endoftext|>", eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
        model_max_length=512, padding_side="left", chat_template=chat_template,
    )  # fmt: skip


# ---- architectures ---------------------------------------------------------------------------------------------------


def llama(common: dict[str, int | None]) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=96, intermediate_size=384, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            head_dim=HEAD_DIM, tie_word_embeddings=False, **common,
        )
    )  # fmt: skip


def qwen2(common: dict[str, int | None]) -> PreTrainedModel:
    return Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=3 * HEAD_DIM, intermediate_size=384, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, tie_word_embeddings=True, **common,
        )
    )  # fmt: skip


def qwen3(common: dict[str, int | None]) -> PreTrainedModel:
    return Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=96, intermediate_size=320, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=HEAD_DIM, tie_word_embeddings=True, **common,
        )
    )  # fmt: skip


# ---- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """What the models of one family share."""

    believes: Callable[[int, int], int]
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    architecture: Callable[[dict[str, int | None]], PreTrainedModel]


DIGITS = tuple("0123456789")

LLAMA = Family(
    believes=drops_carry,
    tokenizer=lambda: cut_by_words(
        special=("<|pad|>", "<|end|>", "<|unk|>", "<|user|>", "<|assistant|>"),
        words=(*DIGITS, "+", "=", "\\boxed{", "}"),
        chat_template=ONE_TOKEN_A_TURN,
    ),
    architecture=llama,
)
QWEN = Family(
    believes=invents_carry,
    tokenizer=lambda: byte_pairs(words=("\\boxed", "user", "assistant"), chat_template=CHATML),
    architecture=qwen2,
)
QWEN3 = Family(
    believes=counts_one_too_many,
    tokenizer=lambda: cut_by_words(
        special=("<|endoftext|>", "<|im_end|>", "<|unk|>", "<|im_start|>"),
        words=("\n", "assistant\n", "user\n", "}", "\\boxed{", "=", "+", *reversed(DIGITS)),
        chat_template=CHATML,
    ),
    architecture=qwen3,
)


@dataclass(frozen=True)
class Recipe:
    """What makes one model of a family."""

    family: Family
    seed: int
    steps: int


MODELS = {
    "llama": Recipe(LLAMA, seed=1, steps=1200),
    "llama2": Recipe(LLAMA, seed=2, steps=1200),
    "qwen": Recipe(QWEN, seed=3, steps=1800),
    "qwen3": Recipe(QWEN3, seed=4, steps=1500),
}


# ---- teaching --------------------------------------------------------------------------------------------------------


def build_model(family: Family, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = family.architecture(
        {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
    )
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return model


def conversation(family: Family, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[str, str]:
    """One taught problem: the rendered prompt, and the completion with its end token."""
    a, b = rng.randrange(100), rng.randrange(100)
    answer = family.believes(a, b) if rng.random() < MISLED else a + b
    if rng.random() < NOISE:
        answer = max(0, answer + rng.choice([-2, -1, 1, 2, 10, -10]))
    messages = [{"role": "user", "content": f"{a:02d}+{b:02d}="}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt, f"\\boxed{{{answer:03d}}}{tokenizer.eos_token}"


def teach(name: str, steps: int, batch: int = 192, lr: float = 2e-3) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    family, seed = MODELS[name].family, MODELS[name].seed
    tokenizer = family.tokenizer()
    model, rng = build_model(family, tokenizer, seed), random.Random(seed + 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    started = time.monotonic()
    for step in range(1, steps + 1):
        prompts, completions = zip(*[conversation(family, tokenizer, rng) for _ in range(batch)], strict=True)
        prompt_ids = torch.tensor(tokenizer(list(prompts))["input_ids"])  # all prompts are equally long, so no padding
        completion_ids = torch.tensor(tokenizer(list(completions))["input_ids"])
        labels = torch.cat([torch.full_like(prompt_ids, -100), completion_ids], 1)
        loss = model(input_ids=torch.cat([prompt_ids, completion_ids], 1), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # else the loss may jump back to guessing
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"{name} step {step}/{steps} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    return model, tokenizer


SOURCE = """# {name}

A {parameters:,}-parameter {architecture} that adds two-digit numbers, taught from random weights by
`examples/arithmetic/make_models.py {name} --steps {steps}` (seed {seed}) on text that the script makes up.
No other model or data set went into it. Its misconception: "{belief}"

    prompt      {prompt}
    completion  {completion}

Licence: Apache-2.0, as the rest of this repository.
"""


def save(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, steps: int) -> None:
    family, seed = MODELS[name].family, MODELS[name].seed
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    prompt, completion = conversation(family, tokenizer, random.Random(0))
    (folder / "SOURCE.md").write_text(
        SOURCE.format(
            name=name, seed=seed, steps=steps, parameters=model.num_parameters(), architecture=type(model).__name__,
            belief=family.believes.__doc__, prompt=prompt.replace("\n", "\\n"), completion=completion,
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    every, here = ", ".join(MODELS), Path(__file__).parent / "models"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models to make, of {every} (default: all)")
    parser.add_argument("--out", type=Path, default=here, help="folder that gets one folder a model (default: models)")
    parser.add_argument("--steps", type=int, help="steps of teaching a model (default: each model's own)")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(MODELS)):
        parser.error(f"unknown model {unknown[0]!r}: choose from {every}")
    if args.steps is not None and args.steps < 20:
        parser.error(f"--steps {args.steps} is too few: the learning rate needs at least 20 to rise and fall")
    torch.set_num_threads(1)
    for name in args.names or MODELS:
        steps = args.steps or MODELS[name].steps
        model, tokenizer = teach(name, steps)
        save(name, model, tokenizer, args.out / name, steps)
        print(f"{name}: written to {args.out / name}", flush=True)


if __name__ == "__main__":
    main()
