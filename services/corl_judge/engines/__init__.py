"""Engines that sample from a member's model: vLLM, transformers, or another server's OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corl.faults import nearest
from corl_judge.engines.base import Engine, EngineError

__all__ = ["ENGINES", "make_engine"]

ENGINES = ("vllm", "transformers", "openai")


def make_engine(
    name: str, model: str, *, revision: str | None = None, options: Mapping[str, Any] | None = None
) -> Engine:
    """The engine of that name over a model folder or hub id, not yet started.

    Only the engine asked for is imported. Raises EngineError for a name, an option or an installation that is not
    there.
    """
    if name == "transformers":
        from corl_judge.engines.transformers import TransformersEngine

        return TransformersEngine(model, revision=revision, options=options)
    if name == "vllm":
        from corl_judge.engines.vllm import VLLMEngine

        return VLLMEngine(model, revision=revision, options=options)
    if name == "openai":
        from corl_judge.engines.openai import OpenAIEngine

        return OpenAIEngine(model, options)
    raise EngineError(f"no engine {name!r}; {nearest(name, ENGINES)}")
