"""Tiny random checkpoints of two architectures with different tokenizers, and snapshots of other weights for them.

The head size is 32, the smallest that vLLM's CPU attention takes; other sizes load and fail at the first forward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from corl.weights import MANIFEST, Manifest, Snapshot, open_snapshot, snapshot_folder, state_digest, tensor_entries

__all__ = ["CHATML", "make_llama", "make_qwen", "perturbed", "publish", "stored_tensors"]

MAX_LEN = 256
CHATML = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _randomise(model: Any, seed: int, spread: float) -> None:
    """Weights far enough from zero that other weights give clearly other tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)


def make_llama(folder: Path, seed: int = 0) -> Path:
    """A Llama with untied embeddings and one token a character; no chat template; one end token."""
    characters = [chr(c) for c in range(32, 127)] + ["\n"]
    vocab = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    _randomise(model, seed, 0.12)
    model.save_pretrained(folder)
    return folder


def make_qwen(folder: Path, seed: int = 0) -> Path:
    """A Qwen3 with tied embeddings, byte-level BPE and a chat template; two end tokens, one of them in the generation
    config alone."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *("".join(pair) for pair in merges)])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
    )
    tokenizer.save_pretrained(folder)
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = Qwen3Config(
        vocab_size=320,  # padded beyond the tokenizer, as Qwen's are
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=end,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    _randomise(model, seed, 0.12)
    model.generation_config = GenerationConfig(
        eos_token_id=[end, pad], pad_token_id=pad, do_sample=True, temperature=0.6, top_k=20
    )
    model.save_pretrained(folder)
    return folder


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def perturbed(tensors: Mapping[str, torch.Tensor], seed: int, spread: float = 0.05) -> dict[str, torch.Tensor]:
    """Other weights of the same model: every tensor moved at random."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + (torch.randn(tensor.shape, generator=generator) * spread).to(tensor.dtype)
        for name, tensor in tensors.items()
    }


def publish(
    root: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    version: int = 1,
    incarnation: int = 1,
    tied: Mapping[str, str] | None = None,
    shards: int = 1,
) -> Snapshot:
    """Write a snapshot as a trainer does, in `shards` files, and open it."""
    name = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    folder = snapshot_folder(root, "run", name, incarnation, version)
    folder.mkdir(parents=True)
    paths = []
    for shard in range(shards):
        paths.append(folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors")
        part = {n: t.contiguous() for i, (n, t) in enumerate(sorted(tensors.items())) if i % shards == shard}
        save_file(part, paths[-1], metadata={"format": "pt"})
    entries = list(tensor_entries(paths))
    manifest = Manifest(
        run="run",
        member=name,
        incarnation=incarnation,
        version=version,
        step=version,
        dtype="float32",
        tied=dict(tied or {}),
        files=[{"name": path.name, "bytes": path.stat().st_size} for path in paths],
        tensors=entries,
        state_digest=state_digest(entries),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return open_snapshot(str(folder), root)
