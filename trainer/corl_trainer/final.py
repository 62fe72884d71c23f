"""The final model: a plain Hugging Face folder made of the last published snapshot.

A snapshot already has what a checkpoint has to have: gathered, adapters merged, the base checkpoint's names and dtypes.
So the final model is, bit for bit, what the judge served last, whatever the training was distributed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from corl.weights import MANIFEST, Manifest, read_header
from corl_trainer.publish import fsync_tree
from corl_trainer.stops import StorageFailed

__all__ = ["write_final"]


def write_final(
    snapshot: Path, target: Path, *, model: str, revision: str | None, tokenizer: Any, trust_remote_code: bool
) -> None:
    """Replace `target` by a folder that `from_pretrained` and vLLM load, with the configuration of the base `model`.

    Raises StorageFailed with the old one kept.
    """
    from transformers import AutoConfig, GenerationConfig

    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        manifest = Manifest.model_validate_json((snapshot / MANIFEST).read_bytes())
        _copy_weights(snapshot, partial, manifest)
        AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code).save_pretrained(
            partial
        )
        with contextlib.suppress(OSError):  # not every checkpoint has one
            GenerationConfig.from_pretrained(model, revision=revision).save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        fsync_tree(partial)
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.rename(target, old)
        os.rename(partial, target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise StorageFailed(
            f"the final model could not be written to {target}: {error}; free space and start again"
        ) from error


def _copy_weights(snapshot: Path, target: Path, manifest: Manifest) -> None:
    files = [entry.name for entry in manifest.files]
    names = (
        {files[0]: "model.safetensors"}
        if len(files) == 1
        else {name: f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i, name in enumerate(files)}
    )
    index: dict[str, str] = {}
    total = 0
    for name, new in names.items():
        shutil.copyfile(snapshot / name, target / new)
        for meta in read_header(target / new):
            index[meta.name] = new
            total += meta.end - meta.begin
    if len(files) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (target / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))
