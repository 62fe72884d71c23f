"""The one door to TRL, and the classes of it that are built on (see `grpo` and `rollouts`).

TRL imports vLLM where it is installed, which takes longer than the rest together and is not used here: rollouts come
from the judge. A None in `sys.modules` makes Python report a module as not installed (documented for `import` and for
`importlib.util.find_spec`), so vLLM is hidden for as long as TRL is being imported, and no longer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["GRPOConfig", "GRPOTrainer", "VLLMGeneration"]


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("vllm"):
    from trl.generation.vllm_generation import VLLMGeneration
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
