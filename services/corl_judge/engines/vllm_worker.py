"""What runs inside vLLM's worker processes: a weight-transfer backend that reads safetensors files, and a watch on the
process that owns the engine.

vLLM imports this module in each worker because of `worker_extension_cls`, before the model is loaded, and finds the
backend registered. The stock ways to reload fail silently on a CPU: linear layers are packed for the kernel, and the
pack of a tied output embedding is built from a tensor that no snapshot holds, so it keeps the old weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import layerwise

from corl_judge.engines.orphans import end_with_owner

__all__ = ["BACKEND", "WorkerExtension"]

BACKEND = "corl-files"


class WorkerExtension:
    """Adds nothing to the worker: naming it is what makes vLLM import this module."""


@dataclass
class Nothing(WeightTransferInitInfo):  # type: ignore[misc]
    pass


@dataclass
class Files(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Safetensors files that together hold the model's tensors `names`, by their Hugging Face names."""

    files: list[str]
    names: list[str]


class FilesEngine(WeightTransferEngine[Nothing, Files]):  # type: ignore[misc]
    """Loads all weights from files in one update. The caller has checked names, shapes and digests.

    An error leaves a model that can run but whose weights are mixed: the caller must load a good set before it lets
    anything be generated.
    """

    init_info_cls = Nothing
    update_info_cls = Files

    def init_transfer_engine(self, init_info: Nothing) -> None:
        pass

    def start_weight_update(self) -> None:
        pass

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def receive_weights(self, update_info: Files) -> None:
        layerwise.initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(_tensors(update_info))
            layerwise.finalize_layerwise_reload(self.model, self.model_config)
        except BaseException:
            self._make_runnable()
            raise
        self._repack_tied_output()

    def _make_runnable(self) -> None:
        """Give layers that were emptied for loading their old tensors back, and forget what was buffered for them."""
        for layer in self.model.modules():
            info = layerwise.get_layerwise_info(layer)
            if info.can_load():
                layerwise._place_kernel_tensors(layer, info)
            info.reset()

    def _repack_tied_output(self) -> None:
        output: Any = getattr(self.model, "lm_head", None)
        tied = self.model_config.hf_config.get_text_config().tie_word_embeddings
        if self.device.type == "cpu" and tied and hasattr(output, "quant_method"):
            output.quant_method.process_weights_after_loading(output)


def _tensors(update: Files) -> Iterator[tuple[str, Any]]:
    names = set(update.names)
    for path in update.files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                if name in names:
                    yield name, file.get_tensor(name)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FilesEngine)

end_with_owner()
