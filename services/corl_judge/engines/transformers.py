"""The engine for machines without vLLM (CPU, Mac, a single GPU): a transformers model behind continuous batching.

    engine = TransformersEngine("path/or/hub-id", options={"dtype": "bfloat16"})

One thread owns the model: it prefills, decodes and loads weights, so the event loop never waits for a matrix product.
A sample depends on its request's seed and its index and not on what else is in the batch. In float32 on a CPU the
logits of a row may still differ in the last bits between batch sizes, so that a sampled token changes about once in
ten million; log-probabilities agree to about 1e-6.

Left out on purpose: paged attention, prefix caching, several devices, quantised checkpoints. Use vLLM for those.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from corl.weights import Snapshot, SnapshotError, verify_digests
from corl.wire import Prompt, Sampling, WeightsTag
from corl_judge.engines.base import DeviceMemory, EngineError, EngineFacts, GenerateRequest, Sample, WeightsRejected
from corl_judge.engines.batching import Batcher, Job, Row
from corl_judge.engines.checkpoint import Checkpoint, resolve_model
from corl_judge.engines.hf_model import HFModel
from corl_judge.engines.model_thread import ModelThread
from corl_judge.engines.options import parse_options
from corl_judge.engines.prompts import PromptEncoder, eos_token_ids, load_tokenizer

__all__ = ["TransformersEngine", "TransformersOptions"]

PROBE = Sampling(max_tokens=1, temperature=0.0)


class TransformersOptions(BaseModel):
    """`engine_options` of this engine. Names that vLLM has too mean what they mean there."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps; auto takes what there is")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: float32 on a CPU, else the checkpoint's"
    )
    max_model_len: int | None = Field(None, ge=2, description="tokens of prompt and completion; the model's if absent")
    max_num_seqs: int = Field(256, ge=1, description="samples that are decoded together")
    kv_cache_memory_bytes: int | None = Field(
        None, ge=1, description="keys and values; 1 GiB on a CPU, else 40 % of the free memory"
    )
    num_threads: int | None = Field(None, ge=1, description="CPU threads; torch's choice (OMP_NUM_THREADS) if absent")
    attn_implementation: str | None = None
    trust_remote_code: bool = False


class TransformersEngine:
    """`Engine` over `AutoModelForCausalLM`; may be called from any event loop."""

    def __init__(self, model: str, *, revision: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._name = model
        self._revision = revision
        self._options = parse_options("transformers", options or {}, TransformersOptions)
        self._thread = ModelThread()
        self._model: HFModel | None = None
        self._outbox: dict[asyncio.AbstractEventLoop, list[Job]] = {}

    @property
    def version(self) -> WeightsTag:
        return self._tag

    async def start(self) -> EngineFacts:
        self._thread.start()
        try:
            return await asyncio.wrap_future(self._thread.call(self._load))
        except BaseException:
            await self.stop()
            raise

    def encode(self, prompt: Prompt) -> list[int]:
        return self._prompts.encode(prompt)

    async def generate(self, request: GenerateRequest) -> list[Sample]:
        self._prompts.check_room(len(request.prompt_token_ids), request.sampling.max_tokens)
        return await self._sample(request.prompt_token_ids, request.n, request.sampling, request.seed)

    def check_weights(self, snapshot: Snapshot) -> None:
        self._checkpoint.check(snapshot.manifest)

    async def load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        self._checkpoint.check(snapshot.manifest)
        try:
            await asyncio.to_thread(verify_digests, snapshot)
        except (SnapshotError, OSError) as error:
            raise WeightsRejected(str(error)) from error
        await asyncio.wrap_future(self._thread.call(partial(self._replace, snapshot, tag)))

    def relabel(self, tag: WeightsTag) -> None:
        self._tag = tag

    async def probe(self) -> None:
        await self._sample(self._probe_prompt, 1, PROBE, 0)

    def device_memory(self) -> DeviceMemory | None:
        return None if self._model is None else self._model.device_memory()

    async def died(self) -> str:
        return await asyncio.shield(asyncio.wrap_future(self._thread.death))

    async def stop(self) -> None:
        await asyncio.to_thread(self._thread.stop)

    # In the event loop -----------------------------------------------------------------------------------------------

    async def _sample(self, prompt: Sequence[int], n: int, sampling: Sampling, seed: int) -> list[Sample]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Sample]] = loop.create_future()
        job = Job(prompt, n, sampling, seed, partial(self._deliver, loop, future))
        # Requests made in one turn of the loop go over together, so that they are prefilled together.
        waiting = self._outbox.setdefault(loop, [])
        waiting.append(job)
        if len(waiting) == 1:
            loop.call_soon(lambda: self._thread.submit(self._outbox.pop(loop)))
        try:
            return await future
        finally:
            job.cancelled = True

    # In the model's thread -------------------------------------------------------------------------------------------

    def _load(self) -> EngineFacts:
        import transformers

        options = self._options
        folder = resolve_model(self._name, self._revision)
        model = self._model = HFModel.load(folder, options)
        tokenizer = load_tokenizer(folder, trust_remote_code=options.trust_remote_code)
        config = model.text_config
        eos = eos_token_ids(config, model.module.generation_config, tokenizer)
        max_tokens = model.kv_tokens(options.kv_cache_memory_bytes)
        max_model_len = self._max_model_len(config, max_tokens)
        self._checkpoint = Checkpoint.open(folder, config)
        self._prompts = PromptEncoder(tokenizer, vocab_size=config.vocab_size, max_model_len=max_model_len)
        self._probe_prompt = [eos[0] if eos else 0]
        self._tag = WeightsTag(incarnation=0, version=0, digest=self._checkpoint.digest())
        batcher = Batcher(model.module, eos=eos, max_rows=options.max_num_seqs, max_tokens=max_tokens)
        self._thread.batcher = batcher
        self._probe_now()
        return EngineFacts(
            name="transformers",
            version=transformers.__version__,
            max_model_len=max_model_len,
            vocab_size=config.vocab_size,
            eos_token_ids=eos,
            chat_template=self._prompts.has_chat_template,
            weights=self._tag,
        )

    def _max_model_len(self, config: Any, max_tokens: int) -> int:
        """The option, or the model's own length as far as the memory for keys and values allows."""
        asked, own = self._options.max_model_len, getattr(config, "max_position_embeddings", None)
        if asked is None:
            if own is None:
                raise EngineError(f"model {self._name!r} does not say its length: set engine_options.max_model_len")
            return int(min(own, max_tokens))
        if own is not None and asked > own:
            raise EngineError(f"engine_options.max_model_len = {asked} exceeds the model's length of {own}")
        if asked > max_tokens:
            raise EngineError(
                f"engine_options.max_model_len = {asked} needs keys and values for as many tokens, there is memory for "
                f"{max_tokens}: raise engine_options.kv_cache_memory_bytes or lower max_model_len"
            )
        return asked

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[list[Sample]],
        outcome: Sequence[Row] | BaseException,
    ) -> None:
        """Hand a job's outcome to the task that waits for it."""
        result: list[Sample] | BaseException
        try:
            result = outcome if isinstance(outcome, BaseException) else self._samples(outcome)
        except Exception as error:  # of the tokenizer; it must not be taken for one of the batch
            result = EngineError(f"the tokens cannot be decoded: {error}")
        with contextlib.suppress(RuntimeError):  # the loop was closed with the task in it: nobody waits
            loop.call_soon_threadsafe(_settle, future, result)

    def _samples(self, rows: Sequence[Row]) -> list[Sample]:
        texts = self._prompts.decode([row.token_ids for row in rows])
        return [
            Sample(row.token_ids, row.logprobs, text, row.finish_reason or "length")
            for row, text in zip(rows, texts, strict=True)
        ]

    def _replace(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        model = self._model
        assert model is not None
        old = model.swap(model.read(snapshot.files(), self._checkpoint))
        try:
            self._probe_now()
        except EngineError as error:
            model.swap(old)
            raise WeightsRejected(f"{snapshot.folder}: the model does not run on these weights: {error}") from error
        self._tag = tag

    def _probe_now(self) -> None:
        """One token, with nothing else running. Raises EngineError."""
        outcomes: list[list[Row] | BaseException] = []
        batcher = self._thread.batcher
        assert batcher is not None
        batcher.add(Job(self._probe_prompt, 1, PROBE, 0, outcomes.append))
        while batcher.busy:
            batcher.step()
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]


def _settle(future: asyncio.Future[list[Sample]], result: list[Sample] | BaseException) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
