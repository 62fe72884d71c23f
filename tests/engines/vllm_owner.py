"""A process that owns a vLLM engine, for tests that kill it: `python -m tests.engines.vllm_owner CHECKPOINT WEIGHTS`.

Prints one line a step. It samples, loads weights, removes them, and then loads weights that do not run, so that the
engine has nothing to go back to; then it waits to be killed.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from corl_judge.engines.base import EngineDead, GenerateRequest
from corl_judge.engines.vllm import VLLMEngine

from corl.wire import Sampling, WeightsTag
from tests.engine_fixtures import OPTIONS
from tests.tiny_models import perturbed, publish, stored_tensors


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(checkpoint: Path, weights: Path) -> None:
    engine = VLLMEngine(str(checkpoint), options=OPTIONS["vllm"])
    await engine.start()
    prompt = engine.encode("What is 1 plus 1?")
    samples = await engine.generate(GenerateRequest(prompt, prompt, 2, Sampling(max_tokens=4), 1))
    say("sampled:", len(samples))
    good = perturbed(stored_tensors(checkpoint), 1)
    first = publish(weights, good, version=1)
    await engine.load_weights(first, WeightsTag(incarnation=1, version=1, digest=first.manifest.state_digest))
    shutil.rmtree(first.folder)
    bad = {name: tensor * float("nan") for name, tensor in good.items()}
    second = publish(weights, bad, version=2)
    try:
        await engine.load_weights(second, WeightsTag(incarnation=1, version=2, digest=second.manifest.state_digest))
    except EngineDead as error:
        say("dead:", error)
    say("died:", await engine.died())
    try:
        await engine.probe()
    except EngineDead as error:
        say("probe:", error)
    say("ready")
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
