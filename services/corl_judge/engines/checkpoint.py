"""The checkpoint an engine is started with, and the check of a snapshot against it.

What a snapshot must hold is what the checkpoint held: the same names and shapes. An engine that is given a subset keeps
the rest of its old weights without a word, and one that is given a wrong shape breaks half way, so both are refused
before the model is touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corl.weights import Manifest, SnapshotError, TensorMeta, checkpoint_digest, read_header
from corl_judge.engines.base import EngineError, WeightsRejected

__all__ = ["Checkpoint", "resolve_model"]

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
INPUT_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
# Old checkpoints store this table, which newer models compute and no trainer gathers.
COMPUTED = re.compile(r"(^|\.)rotary_emb\.inv_freq$")


def resolve_model(model: str, revision: str | None) -> Path:
    """The folder of a model, fetched from the Hugging Face hub if it is a hub id. Raises EngineError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise EngineError(f"model {model!r}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:
        raise EngineError(
            f"model {model!r} is no folder here and cannot be fetched from the hub ({type(error).__name__}: {error}); "
            "download it first, or give the path of a folder"
        ) from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Names, shapes and dtypes of a Hugging Face folder, and whether its output embedding is tied to the input's."""

    folder: Path
    tensors: Mapping[str, TensorMeta]
    tied: bool

    @classmethod
    def open(cls, folder: Path, config: Any) -> Checkpoint:
        """Read the headers of the folder's `*.safetensors`. `config` is the model's PretrainedConfig."""
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise EngineError(f"model {str(folder)!r}: no *.safetensors file there; save it with save_pretrained")
        try:
            metas = {meta.name: meta for path in files for meta in read_header(path) if not COMPUTED.search(meta.name)}
        except SnapshotError as error:
            raise EngineError(str(error)) from error
        return cls(folder, metas, bool(config.get_text_config().tie_word_embeddings))

    def digest(self) -> str:
        """Reads every byte of the checkpoint. Raises EngineError."""
        try:
            return checkpoint_digest(self.folder)
        except SnapshotError as error:
            raise EngineError(str(error)) from error

    def check(self, manifest: Manifest) -> None:
        """Raise WeightsRejected unless the snapshot is a whole set of weights for this model."""
        given = {tensor.name: tensor for tensor in manifest.tensors}
        aliases = self._aliases(manifest)
        for alias, source in aliases.items():
            if alias in given and source in given and given[alias].digest != given[source].digest:
                raise WeightsRejected(
                    f"tensor {alias!r} differs from {source!r} but the model ties them: publish only {source!r}"
                )
        wanted = self.tensors.keys() - aliases.keys()
        _refuse(wanted - given.keys(), "lacks", "publish all of the model's tensors")
        _refuse(given.keys() - self.tensors.keys() - aliases.keys(), "holds the unknown", "it is another model's")
        for name in sorted(wanted):
            ours, theirs = self.tensors[name], given[name]
            if list(ours.shape) != theirs.shape:
                raise WeightsRejected(f"tensor {name!r} has shape {theirs.shape}, the model's is {list(ours.shape)}")
            if ours.dtype != theirs.dtype and not {ours.dtype, theirs.dtype} <= FLOATS:
                raise WeightsRejected(f"tensor {name!r} is {theirs.dtype}, the model's is {ours.dtype}: cannot be cast")

    def _aliases(self, manifest: Manifest) -> dict[str, str]:
        """Tensors that need not be stored, with those that they share; only a model that ties has any.

        Sharing goes one way: the input embedding is what engines load, so it is never the one left out.
        """
        inputs = [name for name in self.tensors if INPUT_EMBEDDING.search(name)]
        if not self.tied or not inputs:
            return {}
        stored = {tensor.name for tensor in manifest.tensors} & self.tensors.keys()
        others = {a: s for a, s in manifest.tied.items() if s in stored and not INPUT_EMBEDDING.search(a)}
        return {"lm_head.weight": inputs[0], **others}


def _refuse(names: set[str], fault: str, remedy: str) -> None:
    if names:
        shown = ", ".join(repr(name) for name in sorted(names)[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise WeightsRejected(f"snapshot {fault} tensor {shown}{more}: {remedy}")
