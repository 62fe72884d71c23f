"""Votes sampled from another server's OpenAI-compatible endpoint: vLLM, SGLang, a hosted model.

    corl judge --engine openai --model org/name --engine-options '{"base_url": "http://host:8000/v1"}'

Such a member is frozen: its weights are the endpoint's, so they are named by a hash of address and model, and cannot be
replaced. Its token ids are unknown, so it gives no rollouts; `encode` only tells prompts apart. What it costs is
counted in prompt and completion tokens, as the endpoint reports them.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, Field

import corl
from corl.weights import Snapshot
from corl.wire import Message, Prompt, WeightsTag
from corl_judge.engines.base import (
    EngineError,
    EngineFacts,
    GenerateRequest,
    PromptRejected,
    Sample,
    Usage,
    WeightsRejected,
)
from corl_judge.engines.options import parse_options

__all__ = ["OpenAIEngine"]

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
NO_WEIGHTS = "this member's weights are those of another server's endpoint: they cannot be replaced from here"


class Options(BaseModel):
    """`engine_options` of the openai engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(pattern=r"^https?://[^\s?#]+$", description="up to and with /v1")
    api_key_env: str = Field("OPENAI_API_KEY", min_length=1, description="variable that holds the key; it may be unset")
    timeout_s: float = Field(300.0, gt=0, description="of one request")
    retries: int = Field(5, ge=0, le=100, description="tries after the first one")
    n_per_request: int | None = Field(None, ge=1, description="most samples in one request, where the endpoint caps n")
    max_connections: int = Field(64, ge=1, description="requests at a time")
    max_model_len: int = Field(1 << 20, ge=2, description="longest prompt in bytes, with its completion's tokens")
    max_tokens_field: str = Field("max_tokens", description="max_completion_tokens where the endpoint asks for it")
    extra_body: dict[str, Any] = Field({}, description="more fields of every request")


class OpenAIEngine:
    """`model` is the endpoint's name for it."""

    def __init__(self, model: str, options: Mapping[str, Any] | None = None) -> None:
        if not model:
            raise EngineError("the openai engine needs the endpoint's name for its model: give --model")
        self._options = parse_options("openai", options or {}, Options)
        self._model = model
        self._url = self._options.base_url.rstrip("/")
        digest = hashlib.sha256(json.dumps([self._url, model]).encode()).hexdigest()
        self._tag = WeightsTag(incarnation=0, version=0, digest=digest)
        self._http: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(self._options.max_connections)
        self._stopped = asyncio.Event()
        self._usage = Usage()

    @property
    def version(self) -> WeightsTag:
        return self._tag

    def usage(self) -> Usage:
        """What has been asked of the endpoint so far."""
        return self._usage

    async def start(self) -> EngineFacts:
        """The endpoint must answer: `GET /models`, or the first completion where it has no such route."""
        key = os.environ.get(self._options.api_key_env)
        headers = {"user-agent": f"corl/{corl.__version__}"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._options.max_connections)
        self._http = httpx.AsyncClient(headers=headers, timeout=self._options.timeout_s, limits=limits)
        response = await self._send("GET", "/models", None)
        if response.status_code in (401, 403):
            raise EngineError(
                f"{self._url} refuses the key ({response.status_code}): set {self._options.api_key_env} to its key"
            )
        known = _model_ids(response)
        if known and self._model not in known:
            raise EngineError(f"{self._url} has no model {self._model!r}: it serves {', '.join(sorted(known)[:10])}")
        return EngineFacts(
            name="openai",
            version=self._url,
            max_model_len=self._options.max_model_len,
            vocab_size=256,
            eos_token_ids=(),
            chat_template=True,
            weights=self._tag,
            token_ids=False,
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The bytes of the messages: an identity and an upper bound of the length, not what the model sees."""
        if not isinstance(prompt, str) and any(isinstance(part, int) for part in prompt):
            raise PromptRejected("the openai engine takes text or chat messages, not token ids")
        messages = _messages(prompt)
        if not any(message["content"] for message in messages):
            raise PromptRejected("the prompt is empty")
        ids = list(json.dumps(messages, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if len(ids) >= self._options.max_model_len:
            raise PromptRejected(
                f"the prompt has {len(ids)} bytes, this member takes {self._options.max_model_len - 1}"
            )
        return ids

    async def generate(self, request: GenerateRequest) -> list[Sample]:
        per_request = self._options.n_per_request or request.n
        sizes = [min(per_request, request.n - start) for start in range(0, request.n, per_request)]
        samples = await self._all(request, sizes, 0)
        if len(samples) < request.n:
            # Endpoints that know no `n` give one choice whatever is asked.
            samples += await self._all(request, [1] * (request.n - len(samples)), len(samples))
        return samples[: request.n]

    def check_weights(self, snapshot: Snapshot) -> None:
        raise WeightsRejected(NO_WEIGHTS)

    async def load_weights(self, snapshot: Snapshot, tag: WeightsTag) -> None:
        raise WeightsRejected(NO_WEIGHTS)

    def relabel(self, tag: WeightsTag) -> None:
        self._tag = tag

    async def probe(self) -> None:
        """Whether the endpoint answers; an answer costs no token. Raises EngineError."""
        response = await self._send("GET", "/models", None)
        if response.status_code >= 500:
            raise EngineError(f"{self._url} answers {response.status_code}")

    async def died(self) -> str:
        # An endpoint that is away may come back: this process has nothing that could break for good.
        await self._stopped.wait()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        self._stopped.set()
        if self._http is not None:
            await self._http.aclose()

    async def _all(self, request: GenerateRequest, sizes: Sequence[int], first: int) -> list[Sample]:
        """Requests of these sizes at once; the first that fails ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                parts = [group.create_task(self._complete(request, n, first + i)) for i, n in enumerate(sizes)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [sample for part in parts for sample in part.result()]

    async def _complete(self, request: GenerateRequest, n: int, index: int) -> list[Sample]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": _messages(request.prompt),
            "n": n,
            self._options.max_tokens_field: sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": (request.seed + index) % 2**31,
        }
        if sampling.top_p < 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
        response = await self._send("POST", "/chat/completions", {**body, **self._options.extra_body})
        if response.status_code in (400, 413, 422):
            raise PromptRejected(f"{self._url} refuses the request ({response.status_code}): {_said(response)}")
        if response.status_code != 200:
            raise EngineError(f"{self._url} answers {response.status_code}: {_said(response)}")
        try:
            answer = response.json()
            samples = [_sample(choice) for choice in answer["choices"]]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{self._url} gave no chat completion: {_said(response)}") from error
        if not samples:
            raise EngineError(f"{self._url} gave no choices")
        counted = answer.get("usage") or {}
        self._usage = self._usage.plus(
            prompt_tokens=int(counted.get("prompt_tokens") or 0),
            completion_tokens=int(counted.get("completion_tokens") or 0),
        )
        return samples

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """The answer of the last try; faults and statuses that pass are tried again. Raises EngineError."""
        assert self._http is not None
        tried = 0
        while True:
            last: httpx.Response | None = None
            said = ""
            try:
                async with self._slots:
                    last = await self._http.request(method, f"{self._url}{path}", json=body)
                if last.status_code not in RETRIED:
                    self._usage = self._usage.plus(requests=1)
                    return last
                said = f"answers {last.status_code}: {_said(last)}"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            self._usage = self._usage.plus(failures=1)
            tried += 1
            if tried > self._options.retries:
                if last is not None:
                    return last
                raise EngineError(f"{self._url} cannot be reached after {tried} tries: {said}")
            await asyncio.sleep(_pause(tried, last))


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [part.model_dump(mode="json") for part in prompt if isinstance(part, Message)]


def _sample(choice: Mapping[str, Any]) -> Sample:
    message = choice["message"]
    text = message.get("content")
    # A length cut inside the reasoning leaves no content: that is an empty completion, without an answer.
    if text is not None and not isinstance(text, str):
        raise TypeError("content is not text")
    reason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Sample([], [], text or "", reason)  # type: ignore[arg-type]


def _model_ids(response: httpx.Response) -> set[str]:
    """Names that `GET /models` lists; none where the endpoint has no such route."""
    if response.status_code != 200:
        return set()
    try:
        return {str(model["id"]) for model in response.json()["data"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _pause(tried: int, response: httpx.Response | None) -> float:
    """Full jitter, and not before `Retry-After` says (RFC 9110, in seconds or as a date)."""
    pause = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tried))
    asked = "" if response is None else response.headers.get("retry-after", "")
    if asked.isdigit():
        return min(LONGEST_PAUSE_S, max(pause, float(asked)))
    if asked and response is not None:
        try:
            until = parsedate_to_datetime(asked) - parsedate_to_datetime(response.headers["date"])
        except (ValueError, TypeError, KeyError):
            return pause
        return min(LONGEST_PAUSE_S, max(pause, until.total_seconds()))
    return pause


def _said(response: httpx.Response) -> str:
    text = response.text.strip()
    return text if len(text) <= 300 else f"{text[:297]}..."
