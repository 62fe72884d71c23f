"""What a snapshot must hold to be loaded into a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from corl_judge.engines.base import EngineError, WeightsRejected
from corl_judge.engines.checkpoint import Checkpoint, resolve_model
from safetensors.torch import save_file

from corl.weights import Manifest
from tests.tiny_models import publish

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SOME = {EMBED: torch.arange(12.0).view(4, 3), "model.norm.weight": torch.ones(3)}


def config(tied: bool) -> Any:
    text = SimpleNamespace(tie_word_embeddings=tied)
    return SimpleNamespace(get_text_config=lambda: text)


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], tied: bool) -> Checkpoint:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint.open(folder, config(tied))


def manifest(folder: Path, tensors: dict[str, torch.Tensor], tied: dict[str, str] | None = None) -> Manifest:
    return publish(folder, tensors, tied=tied).manifest


def test_the_same_names_and_shapes_are_accepted(tmp_path: Path) -> None:
    checkpoint(tmp_path / "m", SOME, tied=False).check(manifest(tmp_path, SOME))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_tied_output_embedding_may_be_there_or_not(tmp_path: Path, stored: bool, given: bool) -> None:
    head = {HEAD: SOME[EMBED].clone()}
    model = checkpoint(tmp_path / "m", SOME | (head if stored else {}), tied=True)
    model.check(manifest(tmp_path, SOME | (head if given else {}), tied={} if given else {HEAD: EMBED}))


def test_an_untied_output_embedding_must_be_there(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "m", SOME | {HEAD: torch.zeros(4, 3)}, tied=False)
    with pytest.raises(WeightsRejected, match=r"lacks tensor 'lm_head.weight'"):
        model.check(manifest(tmp_path, SOME, tied={HEAD: EMBED}))


def test_an_output_embedding_is_unknown_to_a_model_without_one(tmp_path: Path) -> None:
    with pytest.raises(WeightsRejected, match=r"holds the unknown tensor 'lm_head.weight'"):
        checkpoint(tmp_path / "m", SOME, tied=False).check(manifest(tmp_path, SOME | {HEAD: torch.zeros(4, 3)}))


def test_a_tied_pair_with_two_contents_is_rejected(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "m", SOME, tied=True)
    with pytest.raises(WeightsRejected, match="the model ties them"):
        model.check(manifest(tmp_path, SOME | {HEAD: SOME[EMBED] + 1}))


def test_the_input_embedding_is_never_the_one_left_out(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "m", SOME | {HEAD: SOME[EMBED].clone()}, tied=True)
    only_output = {HEAD: SOME[EMBED].clone(), "model.norm.weight": SOME["model.norm.weight"]}
    with pytest.raises(WeightsRejected, match=r"lacks tensor 'model.embed_tokens.weight'"):
        model.check(manifest(tmp_path, only_output, tied={EMBED: HEAD}))


def test_several_missing_tensors_are_counted(tmp_path: Path) -> None:
    many = SOME | {f"model.layers.{i}.weight": torch.ones(2) for i in range(6)}
    model = checkpoint(tmp_path / "m", many, tied=False)
    with pytest.raises(WeightsRejected, match=r"'model.layers.0.weight', .* and 3 more"):
        model.check(manifest(tmp_path, SOME))


@pytest.mark.parametrize(
    ("dtype", "fits"), [(torch.float64, True), (torch.float16, True), (torch.bfloat16, True), (torch.int32, False)]
)
def test_floating_point_numbers_are_cast_and_others_are_not(tmp_path: Path, dtype: torch.dtype, fits: bool) -> None:
    model = checkpoint(tmp_path / "m", SOME, tied=False)
    snapshot = manifest(tmp_path, SOME | {"model.norm.weight": torch.ones(3, dtype=dtype)})
    if fits:
        model.check(snapshot)
    else:
        with pytest.raises(WeightsRejected, match="cannot be cast"):
            model.check(snapshot)


def test_tables_that_newer_models_compute_are_not_asked_for(tmp_path: Path) -> None:
    old = SOME | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    checkpoint(tmp_path / "m", old, tied=False).check(manifest(tmp_path, SOME))


def test_a_folder_without_safetensors_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no \*.safetensors file there; save it with save_pretrained"):
        Checkpoint.open(tmp_path, config(False))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(EngineError, match=r"model.safetensors: not a safetensors file"):
        Checkpoint.open(tmp_path, config(False))


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nothing", "models/a/b/c"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(EngineError, match="no such folder"):
        resolve_model(name, None)


def test_a_folder_is_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("m", None) == tmp_path / "m"


def test_a_hub_that_does_not_answer_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="download it first, or give the path of a folder"):
        resolve_model("nobody/nothing-of-the-kind", None)
