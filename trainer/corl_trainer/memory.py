"""The most memory that a trainer's process has held so far."""

from __future__ import annotations

from typing import Any

from corl.memory import host_peak_bytes

__all__ = ["peak_memory"]


def peak_memory(device: Any) -> dict[str, float]:
    """Bytes since the process began, by metric name; those of a device only where torch counts them (CUDA).

    `memory/device_peak` is what tensors held, `memory/device_reserved_peak` what the process took from the device for
    them, which is what others could not have; the CUDA context comes on top.
    """
    import torch

    found = {"memory/host_peak": float(host_peak_bytes())}
    if device.type == "cuda":
        found["memory/device_peak"] = float(torch.cuda.max_memory_allocated(device))
        found["memory/device_reserved_peak"] = float(torch.cuda.max_memory_reserved(device))
    return found
