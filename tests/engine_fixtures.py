"""Engines that the whole test session shares: one of a kind for each architecture, since vLLM's takes half a minute to
start and three gigabytes.

    async def test_something(vllm_llama: RunningEngine) -> None: ...

`vllm_llama`, `vllm_qwen`, `transformers_llama` and `transformers_qwen` serve their checkpoint's own weights when a test
gets them, whatever the test before loaded. Engines may be used from any event loop. Torch is imported only where an
engine is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from corl_judge.engines import make_engine
from corl_judge.engines.base import Engine, EngineFacts

from corl.weights import Snapshot
from corl.wire import WeightsTag

__all__ = ["RunningEngine"]

OPTIONS: dict[str, dict[str, Any]] = {
    # Short prompts must fill more than one block, or a stale prefix cache would not show.
    "vllm": {"block_size": 32, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 64},
    "transformers": {"device": "cpu", "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 64, "num_threads": 1},
}


@dataclass
class RunningEngine:
    """A started engine, the checkpoint it was started with, and a folder to publish snapshots in."""

    name: str
    architecture: str
    engine: Engine
    facts: EngineFacts
    checkpoint: Path
    weights: Path
    published: int = field(default=0)

    @property
    def tensors(self) -> dict[str, Any]:
        from tests import tiny_models

        return tiny_models.stored_tensors(self.checkpoint)

    def publish(self, tensors: dict[str, Any], **options: Any) -> tuple[Snapshot, WeightsTag]:
        """A snapshot of the next version, and its tag."""
        from tests import tiny_models

        self.published += 1
        snapshot = tiny_models.publish(self.weights, tensors, version=self.published, **options)
        digest = snapshot.manifest.state_digest
        return snapshot, WeightsTag(incarnation=1, version=self.published, digest=digest)

    async def load(self, tensors: dict[str, Any], **options: Any) -> WeightsTag:
        snapshot, tag = self.publish(tensors, **options)
        await self.engine.load_weights(snapshot, tag)
        return tag

    def restore(self) -> None:
        """Serve the checkpoint's own weights again."""
        if self.engine.version != self.facts.weights:
            asyncio.run(self.load(self.tensors))
            self.engine.relabel(self.facts.weights)


MakeRunning = Callable[[str, str], RunningEngine]


@pytest.fixture(scope="session")
def llama_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests import tiny_models

    return tiny_models.make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def qwen_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests import tiny_models

    return tiny_models.make_qwen(tmp_path_factory.mktemp("models") / "qwen")


@pytest.fixture(scope="session")
def running_engines(
    llama_checkpoint: Path, qwen_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeRunning]:
    """(engine name, architecture) -> the session's engine of that kind, started when it is first asked for."""
    checkpoints = {"llama": llama_checkpoint, "qwen": qwen_checkpoint}
    started: dict[tuple[str, str], RunningEngine] = {}

    def get(name: str, architecture: str) -> RunningEngine:
        if (name, architecture) not in started:
            checkpoint = checkpoints[architecture]
            engine = make_engine(name, str(checkpoint), options=OPTIONS[name])
            facts = asyncio.run(engine.start())
            weights = tmp_path_factory.mktemp(f"weights-{name}-{architecture}")
            started[name, architecture] = RunningEngine(name, architecture, engine, facts, checkpoint, weights)
        running = started[name, architecture]
        running.restore()
        return running

    yield get
    for running in started.values():
        asyncio.run(running.engine.stop())


@pytest.fixture
def vllm_llama(running_engines: MakeRunning) -> RunningEngine:
    return running_engines("vllm", "llama")


@pytest.fixture
def vllm_qwen(running_engines: MakeRunning) -> RunningEngine:
    return running_engines("vllm", "qwen")


@pytest.fixture
def transformers_llama(running_engines: MakeRunning) -> RunningEngine:
    return running_engines("transformers", "llama")


@pytest.fixture
def transformers_qwen(running_engines: MakeRunning) -> RunningEngine:
    return running_engines("transformers", "qwen")
