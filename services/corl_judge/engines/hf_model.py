"""A transformers model whose weights can be exchanged while it lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from corl_judge.engines.base import DeviceMemory, EngineError, WeightsRejected
from corl_judge.engines.checkpoint import Checkpoint
from corl_judge.engines.kvcache import bytes_per_token

__all__ = ["HFModel", "ModelOptions"]

CPU_KV_BYTES = 1 << 30
FREE_SHARE = 0.4  # of an accelerator's free memory; joining rows holds one layer twice, a reload all weights


class ModelOptions(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_threads(self) -> int | None: ...
    @property
    def attn_implementation(self) -> str | None: ...
    @property
    def trust_remote_code(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class HFModel:
    module: Any

    @classmethod
    def load(cls, folder: Path, options: ModelOptions) -> HFModel:
        """Load a causal language model for inference on one device. Raises EngineError."""
        from transformers import AutoModelForCausalLM

        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        device = _device(options.device)
        dtype = "float32" if options.dtype == "auto" and device.type == "cpu" else options.dtype
        try:
            module, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=options.attn_implementation,
                trust_remote_code=options.trust_remote_code,
                use_safetensors=True,
                output_loading_info=True,
            )
            module = module.to(device).eval().requires_grad_(False)
        except Exception as error:
            raise EngineError(f"model {str(folder)!r} cannot be loaded by transformers: {error}") from error
        if info["missing_keys"]:
            raise EngineError(f"model {str(folder)!r} lacks tensors {sorted(info['missing_keys'])[:3]}")
        kinds = set(getattr(module.config.get_text_config(), "layer_types", None) or [])
        if kinds - {"full_attention", "sliding_attention", "chunked_attention"}:
            raise EngineError(
                f"model {str(folder)!r} has layers of kind {sorted(kinds)}: this engine runs attention only; use vllm"
            )
        return cls(module)

    @property
    def text_config(self) -> Any:
        return self.module.config.get_text_config()

    def kv_tokens(self, memory_bytes: int | None) -> int:
        """Tokens whose keys and values fit into `memory_bytes`, or into what the device has to spare."""
        device = self.module.device
        if memory_bytes is None and device.type == "cuda":
            memory_bytes = int(torch.cuda.mem_get_info(device)[0] * FREE_SHARE)
        elif memory_bytes is None and device.type == "mps":
            free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
            memory_bytes = int(free * FREE_SHARE)
        return max(1, (memory_bytes or CPU_KV_BYTES) // bytes_per_token(self.text_config, self.module.dtype))

    def device_memory(self) -> DeviceMemory | None:
        """Peaks of the whole process; None where torch counts none."""
        device = self.module.device
        if device.type != "cuda":
            return None
        return DeviceMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))

    def read(self, files: Sequence[Path], checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        """The tensors of a snapshot by the module's own names, on its device and in its dtypes.

        They are copies: nothing is left that reads from the files, which may be deleted. Raises WeightsRejected.
        """
        own = self.module.state_dict(keep_vars=True)
        stored: dict[str, torch.Tensor] = {}
        try:
            for path in files:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                        if name in checkpoint.tensors:
                            like = own.get(name)
                            kind = self.module.dtype if like is None else like.dtype
                            tensor = file.get_tensor(name)
                            stored[name] = tensor.to(self.module.device, kind, copy=True)
        except Exception as error:
            raise WeightsRejected(f"{files[0].parent}: cannot be read: {error}") from error
        return stored if stored.keys() <= own.keys() else self._renamed(stored)

    def _renamed(self, stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By way of a second model, for architectures that transformers stores under other names than it runs."""
        config = self.module.config
        fresh = type(self.module).from_pretrained(None, config=config, state_dict=stored, dtype=self.module.dtype)
        fresh.to(self.module.device)
        return {name: tensor.data for name, tensor in fresh.state_dict(keep_vars=True).items()}

    def swap(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Exchange the tensors by name, tied ones with them; returns the old ones, which put everything back."""
        own = self.module.state_dict(keep_vars=True)
        old = {name: own[name].data for name in tensors}
        for name, tensor in tensors.items():
            own[name].data = tensor
        return old


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineError(f"engine_options.device = {name!r}: {error}") from error
    return device
