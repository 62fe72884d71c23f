"""An engine that answers from a script: deterministic, byte-level tokens, with knobs for delay, failure and death.

The only fake of the test suite. Everything around it (HTTP, Redis, processes, weights folders) is real.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corl_judge.engines.base import (
    EngineDead,
    EngineError,
    EngineFacts,
    GenerateRequest,
    PromptRejected,
    Sample,
    WeightsRejected,
)

from corl.weights import Snapshot, SnapshotError, verify_digests
from corl.wire import Message, Prompt, WeightsTag

__all__ = ["EOS", "Script", "ScriptedEngine", "boxed", "decode", "encode_text"]

Script = Callable[[str, int, int], Sequence[str]]
"""(prompt text, n, seed) -> n completions."""

EOS = 256
_ROLES = {"system": 257, "user": 258, "assistant": 259}
_GENERATE = 260
VOCAB_SIZE = 261


def encode_text(text: str) -> list[int]:
    """One token a byte."""
    return list(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    """The text of the byte tokens; role and end tokens have none."""
    return bytes(t for t in token_ids if t < 256).decode(errors="replace")


def boxed(*answers: str) -> Script:
    """A script that gives the answers in turn, whatever the prompt: `boxed("4", "4", "5")`."""
    return lambda _prompt, n, _seed: [f"So it is \\boxed{{{answers[i % len(answers)]}}}." for i in range(n)]


def seeded(prompt: str, n: int, seed: int) -> list[str]:
    """The default script: answers 0..3 that depend on the seed and on nothing else."""
    digest = hashlib.sha256(f"{seed}".encode()).digest()
    return [f"Thinking about it. \\boxed{{{digest[i % len(digest)] % 4}}}" for i in range(n)]


@dataclass
class ScriptedEngine:
    """`Engine` over a script.

    `delay_s` is slept in every generate; `gate` (set by default) holds every generate while it is cleared, and
    `load_gate` every load; `fail(prompt text)` may return an exception that generate raises; `reject_weights` makes
    loads raise WeightsRejected with that message, `misfit` the check before; `die()` makes everything
    raise EngineDead from then on.
    `calls` lists the requests that started, `generated` counts completions returned, `loads` the tags loaded.
    """

    script: Script = seeded
    delay_s: float = 0.0
    start_delay_s: float = 0.0
    load_delay_s: float = 0.0
    max_model_len: int = 4096
    chat_template: bool = True
    digest: str = "scripted-0"
    fail: Callable[[str], Exception | None] | None = None
    reject_weights: str | None = None
    misfit: str | None = None
    start_error: str | None = None
    calls: list[GenerateRequest] = field(default_factory=list)
    loads: list[WeightsTag] = field(default_factory=list)
    generated: int = 0
    tokens: int = 0
    probes: int = 0
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    load_gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()
        self.load_gate.set()
        self._tag = WeightsTag(incarnation=0, version=0, digest=self.digest)
        self._dead = asyncio.Event()
        self._stopped = False

    @property
    def version(self) -> WeightsTag:
        return self._tag

    def die(self) -> None:
        self._dead.set()

    async def start(self) -> EngineFacts:
        await asyncio.sleep(self.start_delay_s)
        if self.start_error is not None:
            raise EngineError(self.start_error)
        return EngineFacts(
            name="scripted",
            version="1",
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS,),
            chat_template=self.chat_template,
            weights=self._tag,
        )

    def encode(self, prompt: Prompt) -> list[int]:
        ids = self._encode(prompt)
        if not ids:
            raise PromptRejected("the prompt is empty")
        if len(ids) >= self.max_model_len:
            raise PromptRejected(f"the prompt has {len(ids)} tokens, the model takes {self.max_model_len - 1}")
        return ids

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if not self.chat_template:
                return encode_text(prompt)
            return self._encode([Message(role="user", content=prompt)])
        ids: list[int] = []
        for part in prompt:
            if isinstance(part, int):
                if part >= VOCAB_SIZE:
                    raise PromptRejected(f"token id {part} is outside the vocabulary of {VOCAB_SIZE}")
                ids.append(part)
                continue
            if not self.chat_template:
                raise PromptRejected("the tokenizer has no chat template: send text")
            content = part.content if isinstance(part.content, str) else _text(part)
            ids += [_ROLES[part.role], *encode_text(content)]
        return [*ids, _GENERATE] if isinstance(prompt[0], Message) else ids

    async def generate(self, request: GenerateRequest) -> list[Sample]:
        self._check()
        self.calls.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        text = decode(request.prompt_token_ids)
        try:
            await self._unless_dead(self._work(text))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        texts = list(self.script(text, request.n, request.seed))
        if len(texts) != request.n:
            raise AssertionError(f"the script gave {len(texts)} completions for n = {request.n}")
        samples = [self._sample(completion, request.sampling.max_tokens) for completion in texts]
        self.generated += len(samples)
        self.tokens += sum(len(sample.token_ids) for sample in samples)
        return samples

    def check_weights(self, snapshot: Snapshot) -> None:
        if self.misfit is not None:
            raise WeightsRejected(self.misfit)

    async def load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        self._check()
        if self.running:
            raise AssertionError(f"load_weights with {self.running} generations running")
        await self._unless_dead(self._loading())
        if self.reject_weights is not None:
            raise WeightsRejected(self.reject_weights)
        try:
            verify_digests(snapshot)
        except SnapshotError as error:
            raise WeightsRejected(str(error)) from error
        self.loads.append(tag)
        self._tag = tag

    def relabel(self, tag: WeightsTag) -> None:
        self._tag = tag

    async def probe(self) -> None:
        self._check()
        self.probes += 1

    async def died(self) -> str:
        await self._dead.wait()
        if self._stopped:
            await asyncio.Event().wait()
        return "the scripted engine is dead"

    async def stop(self) -> None:
        self._stopped = True
        self._dead.set()

    async def _work(self, text: str) -> None:
        await self.gate.wait()
        await asyncio.sleep(self.delay_s)
        if self.fail is not None and (error := self.fail(text)) is not None:
            raise error

    async def _loading(self) -> None:
        await self.load_gate.wait()
        await asyncio.sleep(self.load_delay_s)

    async def _unless_dead(self, work: object) -> None:
        working = asyncio.ensure_future(work)  # type: ignore[call-overload]
        dying = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            self._check()
            await working
        finally:
            working.cancel()
            dying.cancel()

    def _check(self) -> None:
        if self._dead.is_set():
            raise EngineDead("the scripted engine is dead")

    def _sample(self, text: str, max_tokens: int) -> Sample:
        ids = [*encode_text(text), EOS]
        reason = "stop"
        if len(ids) > max_tokens:
            ids, reason = ids[:max_tokens], "length"
        logprobs = [-0.25 - (token % 7) / 8 for token in ids]
        return Sample(ids, logprobs, decode(ids), reason)  # type: ignore[arg-type]


def _text(message: Message) -> str:
    parts = message.content
    assert not isinstance(parts, str)
    if any(part.type != "text" for part in parts):
        raise PromptRejected("this model takes no images")
    return "\n".join(part.text for part in parts if part.type == "text")
