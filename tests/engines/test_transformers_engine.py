"""The transformers engine beyond the contract: other architectures, and faults of the model and the device."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from corl_judge.engines.base import EngineDead, EngineError, GenerateRequest, Sample
from corl_judge.engines.transformers import TransformersEngine
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from corl.wire import Sampling, WeightsTag
from tests.tiny_models import perturbed, publish, stored_tensors

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 1, "head_dim": 32}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sliding window": ("Mistral", "MistralConfig", {**GROUPED, "sliding_window": 8}),
    "windows in some layers": (
        "Gemma3",
        "Gemma3TextConfig",
        {**GROUPED, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "learned positions": ("GPTNeoX", "GPTNeoXConfig", SIZES),
    "experts stored one by one, run as one": ("Mixtral", "MixtralConfig", {**GROUPED, "num_local_experts": 4}),
}


def make(folder: Path, tokenizer: Path, kind: str) -> Path:
    name, config_name, sizes = ARCHITECTURES[kind]
    config = getattr(transformers, config_name)(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.12)
    model.save_pretrained(folder)
    for path in tokenizer.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def error(checkpoint: Path, prompts: Sequence[list[int]], groups: Sequence[list[Sample]]) -> float:
    """The largest difference of log-probabilities from a plain forward pass of the checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    worst = 0.0
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + sample.token_ids])).logits[0, len(prompt) - 1 : -1]
            wanted = logits.log_softmax(-1).gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            worst = max(worst, float((wanted - torch.tensor(sample.logprobs)).abs().max()))
    return worst


async def sample(engine: TransformersEngine, prompts: Sequence[list[int]], n: int = 2) -> list[list[Sample]]:
    sampling = Sampling(max_tokens=30)
    return await asyncio.gather(
        *(engine.generate(GenerateRequest(prompt, prompt, n, sampling, i)) for i, prompt in enumerate(prompts))
    )


@pytest.mark.parametrize("kind", ARCHITECTURES)
async def test_other_architectures_sample_and_reload_exactly(kind: str, llama_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "model", llama_checkpoint, kind)
    engine = TransformersEngine(str(checkpoint), options={"device": "cpu"})
    await engine.start()
    prompts = [engine.encode("What is 1 plus 1?"[: 3 + 4 * i]) for i in range(5)]
    assert error(checkpoint, prompts, await sample(engine, prompts)) < 1e-4
    snapshot = publish(tmp_path / "weights", perturbed(stored_tensors(checkpoint), 1))
    await engine.load_weights(snapshot, WeightsTag(incarnation=1, version=1, digest=snapshot.manifest.state_digest))
    fresh = tmp_path / "fresh"
    shutil.copytree(checkpoint, fresh, ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(snapshot.files()[0], fresh / "model.safetensors")
    assert error(fresh, prompts, await sample(engine, prompts)) < 1e-4
    await engine.stop()


async def test_a_recurrent_model_is_refused(llama_checkpoint: Path, tmp_path: Path) -> None:
    config = transformers.Qwen3_5TextConfig(**GROUPED)
    transformers.Qwen3_5ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"linear_attention.*use vllm"):
        await TransformersEngine(str(tmp_path), options={"device": "cpu"}).start()


async def test_a_checkpoint_with_a_hole_does_not_start(llama_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llama_checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"lacks tensors \['model.layers.0.mlp.up_proj.weight'\]"):
        await TransformersEngine(str(folder), options={"device": "cpu"}).start()


async def test_a_checkpoint_that_has_diverged_does_not_start(llama_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llama_checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] *= torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match="not finite"):
        await TransformersEngine(str(folder), options={"device": "cpu"}).start()


Break = Callable[[Exception], None]


@pytest.fixture
async def engine(llama_checkpoint: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(str(llama_checkpoint), options={"device": "cpu"})
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def break_model(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Have the next forward pass of the model raise."""

    def arm(error: Exception) -> None:
        module = engine._model.module
        forward = module.forward

        @functools.wraps(forward)
        def broken(**arguments: Any) -> Any:
            module.forward = forward
            raise error

        module.forward = broken

    return arm


async def test_a_request_that_runs_out_of_memory_fails_alone(engine: TransformersEngine, break_model: Break) -> None:
    break_model(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(EngineError, match="lower engine_options") as caught:
        await sample(engine, [[5, 6]])
    assert not isinstance(caught.value, EngineDead)
    assert len((await sample(engine, [[5, 6]]))[0]) == 2


async def test_a_failed_probe_says_so_without_death(engine: TransformersEngine, break_model: Break) -> None:
    break_model(ValueError("no"))
    with pytest.raises(EngineError, match="no") as caught:
        await engine.probe()
    assert not isinstance(caught.value, EngineDead)
    await engine.probe()


async def test_a_device_that_failed_is_death_for_all(engine: TransformersEngine, break_model: Break) -> None:
    died = asyncio.create_task(engine.died())
    break_model(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(EngineError):
        await engine.probe()
    assert "illegal memory access" in await died
    with pytest.raises(EngineDead, match="illegal memory access"):
        await engine.probe()
    with pytest.raises(EngineDead):
        await sample(engine, [[5, 6]])


async def test_weights_wait_for_what_runs_and_hold_what_comes(
    engine: TransformersEngine, llama_checkpoint: Path, tmp_path: Path
) -> None:
    """No completion mixes versions, even if the caller does not see to it."""
    tensors = perturbed(stored_tensors(llama_checkpoint), 1)
    snapshot = publish(tmp_path, tensors)
    fresh = tmp_path / "fresh"
    shutil.copytree(llama_checkpoint, fresh)
    save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
    prompts = [[5 + i, 6, 7] for i in range(6)]
    before = asyncio.create_task(sample(engine, prompts, n=8))
    await engine.probe()
    tag = WeightsTag(incarnation=1, version=1, digest=snapshot.manifest.state_digest)
    loading = asyncio.create_task(engine.load_weights(snapshot, tag))
    arrived = []
    while not loading.done():
        arrived.append(asyncio.create_task(sample(engine, prompts[:1], n=2)))
        await engine.probe()
    await loading
    assert error(llama_checkpoint, prompts, await before) < 1e-4
    for groups in await asyncio.gather(*arrived):
        assert min(error(folder, prompts[:1], groups) for folder in (llama_checkpoint, fresh)) < 1e-4
    assert error(fresh, prompts, await sample(engine, prompts)) < 1e-4
