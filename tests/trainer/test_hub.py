"""A member whose model is a hub id: what is trained and published is what its judge has loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from corl_trainer.stops import ExitCode
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from corl.weights import checkpoint_digest
from tests.trainer.conftest import Lab
from tests.trainer.stack import MODELS, ended, trainer_process, write_cohort


def cached(hub: Path, revision: str, commit: str, shift: float, dtype: torch.dtype) -> Path:
    """A revision of org/nano as the hub's cache holds it: the nano llama with other weights."""
    folder = hub / "models--org--nano" / "snapshots" / commit
    shutil.copytree(MODELS / "llama", folder)
    model = AutoModelForCausalLM.from_pretrained(MODELS / "llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shift)
    model.to(dtype).save_pretrained(folder)
    ref = hub / "models--org--nano" / "refs" / revision
    ref.parent.mkdir(exist_ok=True)
    ref.write_text(commit)
    return folder


def test_its_revision_is_trained_and_published_in_the_checkpoints_dtypes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = lab.root / "hub"
    main = cached(hub, "main", "a" * 40, 0.01, torch.float32)
    other = cached(hub, "v1", "b" * 40, 0.02, torch.bfloat16)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    named = {"members__llama__model": "org/nano", "members__llama__revision": "v1"}
    file = write_cohort(lab.root / "cohort.yaml", training__steps=1, problems__heldout=None, **named)
    log = lab.root / "trainer.log"
    with trainer_process(lab.command(file), log) as process:
        assert ended(process, log) == ExitCode.DONE, log.read_text()[-3000:]
    assert checkpoint_digest(main) != checkpoint_digest(other)
    assert lab.digests()[0] == checkpoint_digest(other), "version 0 is what a judge of this revision has loaded"
    final = load_file(lab.root / "run/llama/final/model.safetensors")
    assert {tensor.dtype for tensor in final.values()} == {torch.bfloat16}
