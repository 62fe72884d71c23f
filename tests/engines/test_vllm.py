"""What only vLLM can get wrong: weights that fail half way, processes that are killed, options of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from corl_judge.engines.base import EngineDead, EngineError, GenerateRequest, WeightsRejected
from corl_judge.engines.checkpoint import Checkpoint
from corl_judge.engines.vllm import VLLMEngine

from corl.wire import Sampling
from tests.engine_fixtures import OPTIONS, RunningEngine
from tests.engines.test_contract import assert_serves
from tests.tiny_models import perturbed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
GONE_S = 60.0


@pytest.fixture(params=["llama", "qwen"])
def running(request: pytest.FixtureRequest, running_engines: Callable[[str, str], RunningEngine]) -> RunningEngine:
    return running_engines("vllm", request.param)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight"])
async def test_weights_that_fail_half_way_are_rolled_back(
    running: RunningEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the check before it off, a wrong shape is found when part of the model has been overwritten."""
    old = perturbed(running.tensors, 1)
    tag = await running.load(old)
    bad = perturbed(running.tensors, 2)
    bad[name] = torch.zeros(8, 8)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "check", lambda self, manifest: None)
        with pytest.raises(WeightsRejected, match="does not run on these weights"):
            await running.load(bad)
    assert running.engine.version == tag
    await assert_serves(running, old)
    good = perturbed(running.tensors, 3)
    await running.load(good)
    await assert_serves(running, good)


async def test_reloads_while_requests_keep_coming(running: RunningEngine) -> None:
    """A judge drains first. If one did not, no completion of two versions would pass for one of either."""
    sampling = Sampling(max_tokens=60)
    prompt = running.engine.encode("What is 1 plus 1?")
    stop = False
    outcomes: list[str] = []

    async def ask(seed: int) -> None:
        while not stop:
            try:
                await running.engine.generate(GenerateRequest(prompt, prompt, 4, sampling, seed))
                outcomes.append("ok")
            except EngineError as error:
                outcomes.append(str(error))

    askers = [asyncio.create_task(ask(i)) for i in range(4)]
    for seed in (4, 5, 6):
        await running.load(perturbed(running.tensors, seed))
    stop = True
    await asyncio.gather(*askers)
    assert {outcome for outcome in outcomes if outcome != "ok"} <= {
        "a completion was sampled from two versions of the weights; send it again"
    }
    await assert_serves(running, perturbed(running.tensors, 6))


async def test_long_prompts_with_seeds_run_beside_each_other(running: RunningEngine) -> None:
    """A seeded request whose prefill is cut in two kills vLLM's engine on a CPU."""
    prompts = [[5 + i] * 240 for i in range(16)]
    groups = await asyncio.gather(
        *(running.engine.generate(GenerateRequest(p, p, 4, Sampling(max_tokens=4), 1)) for p in prompts)
    )
    assert [len(group) for group in groups] == [4] * 16


async def test_a_cancelled_request_is_aborted(running: RunningEngine) -> None:
    prompt = running.engine.encode("What is 1 plus 1?")
    request = GenerateRequest(prompt, prompt, 32, Sampling(max_tokens=200), 0)
    doomed = asyncio.create_task(running.engine.generate(request))
    await running.engine.probe()
    assert isinstance(running.engine, VLLMEngine)
    client = running.engine._engine
    assert client.get_num_unfinished_requests() == 32
    doomed.cancel()
    await asyncio.wait([doomed])
    await running.engine.probe()
    assert client.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_model_length": 100},
            "max_model_length is not an option of the vllm engine: did you mean 'max_model_len'",
        ),
        ({"logprobs_mode": "raw_logprobs"}, "logprobs_mode cannot be set: log-probabilities are those of"),
        ({"max_model_len": 10_000}, "vLLM does not start"),
    ],
)
async def test_an_option_that_cannot_be_is_refused_by_name(
    llama_checkpoint: Path, options: dict[str, Any], message: str
) -> None:
    engine = VLLMEngine(str(llama_checkpoint), options=options)
    with pytest.raises(EngineError, match=message):
        await engine.start()
    await engine.stop()


def engine_processes(owner: int) -> list[psutil.Process]:
    """vLLM's engine core and workers below a process."""
    found = psutil.Process(owner).children(recursive=True)
    return [process for process in found if process.name().startswith("VLLM")]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


async def test_a_killed_worker_is_the_engines_death(llama_checkpoint: Path) -> None:
    """Asked for something or not, the death is told, and nothing is left behind."""
    before = set(engine_processes(os.getpid()))
    engine = VLLMEngine(str(llama_checkpoint), options=OPTIONS["vllm"])
    await engine.start()
    processes = [process for process in engine_processes(os.getpid()) if process not in before]
    prompt = engine.encode("What is 1 plus 1?")
    request = GenerateRequest(prompt, prompt, 32, Sampling(max_tokens=200), 0)
    died = asyncio.create_task(engine.died())
    in_flight = asyncio.create_task(engine.generate(request))
    await engine.probe()
    (worker,) = [process for process in processes if process.name() == "VLLM::Worker"]
    worker.send_signal(signal.SIGKILL)
    with pytest.raises(EngineDead):
        await in_flight
    assert "log" in await asyncio.wait_for(died, GONE_S)
    for work in (engine.probe(), engine.generate(request)):
        with pytest.raises(EngineDead):
            await work
    await engine.stop()
    assert_gone(processes)


def steps(owner: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
    """What the process says until it is ready, as (step, outcome)."""
    assert owner.stdout is not None
    for line in owner.stdout:
        if line == "ready\n":
            return
        step, _, outcome = line.rstrip("\n").partition(": ")
        yield step, outcome
    raise AssertionError("the process ended before it was ready")


def test_a_killed_owner_takes_its_engine_along(llama_checkpoint: Path, tmp_path: Path) -> None:
    """And an engine that has no weights to go back to counts as dead. No compiler is needed, as in slim images."""
    command = [sys.executable, "-m", "tests.engines.vllm_owner", str(llama_checkpoint), str(tmp_path / "weights")]
    bare = {**os.environ, "CXX": str(tmp_path / "no-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    bare.pop("TORCH_COMPILE_DISABLE", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=bare) as owner:
        try:
            lines = dict(steps(owner))
            assert lines.keys() == {"sampled", "dead", "died", "probe"}
            assert lines["sampled"] == "2"
            assert "old ones cannot be loaded again" in lines["dead"]
            assert lines["dead"] == lines["died"] == lines["probe"]
            processes = engine_processes(owner.pid)
            assert {process.name() for process in processes} >= {"VLLM::Worker"}
        finally:
            owner.kill()
    assert_gone(processes)
