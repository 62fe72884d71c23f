"""What a judge needs of an engine. Engines know tokens and weights; they know nothing of votes, Redis or HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from corl.weights import Snapshot
from corl.wire import Prompt, Sampling, WeightsTag

__all__ = [
    "DeviceMemory",
    "Engine",
    "EngineDead",
    "EngineError",
    "EngineFacts",
    "GenerateRequest",
    "Metered",
    "OnDevice",
    "PromptRejected",
    "Sample",
    "Usage",
    "WeightsRejected",
]


class EngineError(Exception):
    """One request failed inside the engine; the engine goes on."""


class PromptRejected(EngineError):
    """The prompt cannot be run: too long, empty, a token id outside the vocabulary. The message names which."""


class EngineDead(EngineError):
    """The engine cannot go on; the process must exit so that its supervisor starts a new one."""


class WeightsRejected(EngineError):
    """A snapshot does not fit the model or its content does not match its manifest; the old weights still serve."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says of its model once started.

    `weights` names the weights it was started with: incarnation 0, version 0 and the digest of the loaded checkpoint.
    """

    name: str
    version: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    chat_template: bool
    weights: WeightsTag
    token_ids: bool = True
    """False for a remote model whose tokens are unknown: its samples have texts alone, and it gives votes only."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine has asked of another server, and at what cost. `failures` are tries that were repeated."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, **more: int) -> Usage:
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


@runtime_checkable
class Metered(Protocol):
    """An engine whose use costs something elsewhere."""

    def usage(self) -> Usage:
        """So far; never falls."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Peaks in bytes since the start: what tensors held, and what the process took from the device for them."""

    allocated: int
    reserved: int


@runtime_checkable
class OnDevice(Protocol):
    """An engine that runs in this process and may hold an accelerator's memory."""

    def device_memory(self) -> DeviceMemory | None:
        """None before the model is loaded, and on a device whose memory is not counted."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """n samples of one prompt. `prompt_token_ids` is what `encode` returned for `prompt`.

    Samples depend on `seed` alone where the engine can promise it; sample i of a prompt uses its own stream.
    """

    prompt: Prompt
    prompt_token_ids: Sequence[int]
    n: int
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """`token_ids` ends with the end token when `finish_reason` is `stop`; it is never empty. `logprobs` are those of
    the distribution sampled from (temperature applied), one a token."""

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length"]


class Engine(Protocol):
    """`load_weights` is called with nothing running; `generate` never runs while it does (the judge sees to both)."""

    @property
    def version(self) -> WeightsTag:
        """The weights that answer now."""

    async def start(self) -> EngineFacts:
        """Load the model. Raises EngineError with a message that names the folder and the remedy."""

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt in the member's own chat template; token ids are checked and passed through.

        Raises PromptRejected.
        """

    async def generate(self, request: GenerateRequest) -> list[Sample]:
        """n samples. Cancelling the task aborts the work. Raises PromptRejected, EngineError, EngineDead."""

    def check_weights(self, snapshot: Snapshot) -> None:
        """Whether names, shapes and dtypes are this model's, from headers alone. Raises WeightsRejected."""

    async def load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        """Replace all weights, clear every cache, serve as `tag`.

        Raises WeightsRejected with the old weights serving again, or EngineDead.
        """

    def relabel(self, tag: WeightsTag) -> None:
        """The same weights under a new tag (equal digest): nothing is loaded."""

    async def probe(self) -> None:
        """One generated token. Raises EngineDead if the engine is gone, EngineError if this token failed; slow is not
        dead."""

    async def died(self) -> str:
        """Wait until the engine cannot go on, also when nothing is asked of it; returns the cause."""

    async def stop(self) -> None:
        """End the engine and its processes."""
