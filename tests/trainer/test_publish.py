"""Published weights: whole or not there, never rewritten, deleted only behind the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from corl_trainer.final import write_final
from corl_trainer.publish import Publisher, newest_incarnation, served_dtypes
from corl_trainer.stops import StorageFailed
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from corl.weights import checkpoint_digest, open_snapshot, verify_digests
from corl.wire import Replica, WeightsStatus, WeightsTag
from tests.trainer.stack import MODELS

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4), "c": torch.arange(3), "empty": torch.empty(0, 2)}


def publisher(root: Path, incarnation: int = 1, **more: object) -> Publisher:
    return Publisher(root, "run", "m", incarnation, **more)  # type: ignore[arg-type]


def tag(incarnation: int, version: int) -> WeightsTag:
    return WeightsTag(incarnation=incarnation, version=version, digest=f"{incarnation}:{version}")


def status(desired: tuple[int, int] | None, *loaded: tuple[int, int] | None) -> WeightsStatus:
    replicas = [
        Replica(id=str(i), member="m", state="ready", loaded=tag(*pair) if pair else None, started_at=0.0)
        for i, pair in enumerate(loaded)
    ]
    return WeightsStatus(desired=tag(*desired) if desired else None, replicas=replicas)


@pytest.mark.parametrize("shard_bytes", [1, 20, 1 << 30])
def test_what_is_written_is_what_is_read_however_it_is_cut(tmp_path: Path, shard_bytes: int) -> None:
    uri, manifest = publisher(tmp_path, shard_bytes=shard_bytes).write(7, TENSORS.items(), {"d": "a"})
    assert uri == "run/m/v00000007-i0001"
    snapshot = open_snapshot(uri, tmp_path)
    verify_digests(snapshot)
    assert snapshot.manifest == manifest
    assert {t.name: tuple(t.shape) for t in manifest.tensors} == {n: tuple(t.shape) for n, t in TENSORS.items()}
    assert (manifest.version, manifest.step, manifest.incarnation, manifest.tied) == (7, 7, 1, {"d": "a"})
    assert manifest.dtype == "mixed"
    whole = publisher(tmp_path, 2).write(7, TENSORS.items(), {})[1]
    assert manifest.state_digest == whole.state_digest, "the digest is of the content, not of the files"


def test_the_base_checkpoints_dtypes_are_kept(tmp_path: Path) -> None:
    dtypes = {"a": "BF16", "c": "F32"}
    _, manifest = publisher(tmp_path, dtypes=lambda: dtypes).write(0, TENSORS.items(), {})
    assert {t.name: t.dtype for t in manifest.tensors} == {"a": "BF16", "b": "F32", "c": "I64", "empty": "F32"}


@pytest.mark.parametrize("member", ["llama", "qwen"])
def test_version_0_has_the_digest_of_the_checkpoint_that_judges_start_with(tmp_path: Path, member: str) -> None:
    folder = MODELS / member
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own = Publisher(tmp_path, "run", member, 1, lambda: served_dtypes(str(folder)))
    uri, manifest = own.write(0, model.named_parameters(), {})
    assert manifest.state_digest == checkpoint_digest(folder)
    final = tmp_path / "final"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for _ in range(2):  # the second replaces the first
        write_final(
            tmp_path / uri, final, model=str(folder), revision=None, tokenizer=tokenizer, trust_remote_code=False
        )
    again = AutoModelForCausalLM.from_pretrained(final)
    ids = tokenizer("1+1=", return_tensors="pt").input_ids
    assert torch.equal(again(ids).logits, AutoModelForCausalLM.from_pretrained(folder)(ids).logits)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_sharded_final_model_has_an_index(tmp_path: Path) -> None:
    folder = MODELS / "llama"
    model = AutoModelForCausalLM.from_pretrained(folder)
    uri, _ = Publisher(tmp_path, "run", "llama", 1, shard_bytes=100_000).write(0, model.named_parameters(), {})
    final = tmp_path / "final"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    write_final(tmp_path / uri, final, model=str(folder), revision=None, tokenizer=tokenizer, trust_remote_code=False)
    assert (final / "model.safetensors.index.json").is_file()
    assert checkpoint_digest(final) == checkpoint_digest(folder)
    loaded = AutoModelForCausalLM.from_pretrained(final).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())


def test_nothing_is_seen_of_a_snapshot_that_failed_half_way(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", TENSORS["a"]
        assert not (tmp_path / "run/m/v00000001-i0001").exists()
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFailed, match=r"weights of step 1 could not be written .* No space left"):
        publisher(tmp_path, shard_bytes=1).write(1, broken(), {})
    assert list((tmp_path / "run/m").iterdir()) == []
    publisher(tmp_path).write(1, TENSORS.items(), {})


def test_a_published_version_is_never_rewritten(tmp_path: Path) -> None:
    uri, _ = publisher(tmp_path).write(1, TENSORS.items(), {})
    before = {path.name: path.read_bytes() for path in (tmp_path / uri).iterdir()}
    with pytest.raises(StorageFailed, match="already published"):
        publisher(tmp_path).write(1, [("a", torch.zeros(2, 3))], {})
    assert {path.name: path.read_bytes() for path in (tmp_path / uri).iterdir()} == before


def test_leftovers_of_a_killed_trainer_are_removed(tmp_path: Path) -> None:
    half = tmp_path / "run/m/.partial-v00000003-i0001"
    half.mkdir(parents=True)
    (half / "model-00001.safetensors").write_bytes(b"half")
    publisher(tmp_path, 2).clear_partial()
    assert not half.exists()
    assert newest_incarnation(tmp_path, "run", "m") == 0
    publisher(tmp_path, 5).write(0, TENSORS.items(), {})
    assert newest_incarnation(tmp_path, "run", "m") == 5
    assert newest_incarnation(tmp_path, "run", "other") == 0


@given(
    published=st.sets(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=8),
    loaded=st.lists(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=3),
    keep=st.integers(1, 3),
)
def test_what_a_replica_may_still_read_is_not_deleted(
    tmp_path_factory: pytest.TempPathFactory,
    published: set[tuple[int, int]],
    loaded: list[tuple[int, int] | None],
    keep: int,
) -> None:
    root = tmp_path_factory.mktemp("retire")
    for incarnation, version in published:
        (root / f"run/m/v{version:08d}-i{incarnation:04d}").mkdir(parents=True)
    desired = max(published)
    retired = set(publisher(root, 3, keep=keep).retire(status(desired, *loaded)))
    left = {path.name for path in (root / "run/m").iterdir()}
    names = {pair: f"v{pair[1]:08d}-i{pair[0]:04d}" for pair in published}
    assert left | retired == set(names.values())
    assert not left & retired
    for pair in [*sorted(published)[-keep:], desired]:
        assert names[pair] in left
    for pair, name in names.items():
        if any(mark is None or pair >= mark for mark in loaded):
            assert name in left, "a replica may be reading it"


def test_old_versions_do_go(tmp_path: Path) -> None:
    own = publisher(tmp_path, 2)
    for version in range(5):
        own.write(version, TENSORS.items(), {})
    assert own.retire(status(None)) == []
    assert own.retire(status((2, 4), (2, 2), (2, 4))) == ["v00000000-i0002", "v00000001-i0002"]
    assert own.retire(status((2, 4), (2, 4))) == ["v00000002-i0002"]
