"""Snapshots: what is found before a tensor is read, what only the digests tell, and identity by content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corl.weights import (
    MANIFEST,
    Manifest,
    Snapshot,
    SnapshotError,
    TensorEntry,
    checkpoint_digest,
    open_snapshot,
    read_header,
    snapshot_folder,
    state_digest,
    tensor_digest,
    tensor_entries,
    verify_digests,
)

Content = Mapping[str, tuple[str, list[int], bytes]]
CONTENT: Content = {
    "b": ("F32", [2, 2], bytes(range(16))),
    "a": ("BF16", [3], b"abcdef"),
    "scalar": ("I64", [], bytes(8)),
    "empty": ("U8", [0, 4], b""),
}


def safetensors(content: Content) -> bytes:
    """The format written by hand: https://huggingface.co/docs/safetensors"""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in content.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def publish(root: Path, shards: Mapping[str, Content], version: int = 1, **changes: Any) -> Path:
    folder = snapshot_folder(root, "run", "a", 1, version)
    folder.mkdir(parents=True)
    for name, content in shards.items():
        (folder / name).write_bytes(safetensors(content))
    entries = list(tensor_entries(folder / name for name in shards))
    manifest = {
        "run": "run",
        "member": "a",
        "incarnation": 1,
        "version": version,
        "step": version,
        "dtype": "mixed",
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in shards],
        "tensors": [entry.model_dump() for entry in entries],
        "state_digest": state_digest(entries),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))
    return folder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(tmp_path, {"model.safetensors": CONTENT})


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


# Reading --------------------------------------------------------------------------------------------------------------


def test_a_header_tells_names_types_shapes_and_places(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(CONTENT))
    content = path.read_bytes()
    for meta in read_header(path):
        dtype, shape, raw = CONTENT[meta.name]
        assert (meta.dtype, list(meta.shape), content[meta.begin : meta.end]) == (dtype, shape, raw)
    assert {meta.name for meta in read_header(path)} == CONTENT.keys()


def test_entries_have_the_digest_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(CONTENT))
    assert {entry.name: entry.digest for entry in tensor_entries([path])} == {
        name: hashlib.sha256(raw).hexdigest() for name, (_, _, raw) in CONTENT.items()
    }


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {"x": torch.randn(3, 5), "y": torch.randn(7).bfloat16(), "z": torch.tensor([True, False])}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    entries = {entry.name: entry for entry in tensor_entries([tmp_path / "model.safetensors"])}
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "x": ("F32", [3, 5]),
        "y": ("BF16", [7]),
        "z": ("BOOL", [2]),
    }
    assert entries["x"].digest == tensor_digest(tensors["x"].numpy().tobytes())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\x01\x02", "not a safetensors file"),
        (raw_file(b"{}", length=1 << 40), "not a safetensors file"),
        (raw_file(b"{}", length=3), "not a safetensors file"),
        (raw_file(b"[]"), "unreadable safetensors header"),
        (raw_file(b"\xff\xfe"), "unreadable safetensors header"),
        (raw_file(b"[" * 100_000), "unreadable safetensors header"),
        (raw_file(b'{"x": {"dtype": "F32", "shape": [1]}}'), "unreadable safetensors header"),
        (raw_file(b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'), "lies outside the file"),
        (raw_file(b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', bytes(4)), "'x' of F32 .2. has 4"),
        (raw_file(b'{"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)), "'x' of F99"),
        (raw_file(b'{"x": {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]}}', bytes(4)), "'x' of U8"),
        (raw_file(b'{"x": {"dtype": "U8", "shape": [-2, -2], "data_offsets": [0, 4]}}', bytes(4)), "'x' of U8"),
        (raw_file(b'{"x": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}', bytes(8)), "begins at byte"),
        (raw_file(b'{"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}', bytes(8)), "ends at byte"),
        (
            raw_file(
                b'{"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
                b' "y": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}',
                bytes(6),
            ),
            "'y' begins at byte",
        ),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    for data in (content, raw_file(content)):
        path.write_bytes(data)
        try:
            read_header(path)
        except SnapshotError:
            continue


# Identity -------------------------------------------------------------------------------------------------------------

entries = st.lists(
    st.builds(
        TensorEntry,
        name=st.text("ab.", min_size=1, max_size=4),
        shape=st.lists(st.integers(0, 9), max_size=3),
        dtype=st.sampled_from(["F32", "BF16"]),
        digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda entry: entry.name,
)


@given(entries, st.randoms())
def test_the_state_digest_does_not_depend_on_order(tensors: list[TensorEntry], random: Any) -> None:
    shuffled = tensors.copy()
    random.shuffle(shuffled)
    assert state_digest(shuffled) == state_digest(tensors)


@given(entries, st.data())
def test_the_state_digest_depends_on_everything_else(tensors: list[TensorEntry], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(tensors) - 1))
    changes: dict[str, Any] = {"name": "c", "shape": [10], "dtype": "F16", "digest": "g" * 64}
    field = data.draw(st.sampled_from(sorted(changes)))
    changed = tensors.copy()
    changed[index] = tensors[index].model_copy(update={field: changes[field]})
    assert state_digest(changed) != state_digest(tensors)


def test_sharding_and_order_do_not_change_a_checkpoints_digest(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "model.safetensors").write_bytes(safetensors(CONTENT))
    for i, name in enumerate(sorted(CONTENT)):
        (two / f"model-{i}.safetensors").write_bytes(safetensors({name: CONTENT[name]}))
    assert checkpoint_digest(one) == checkpoint_digest(two)


def test_a_folder_without_safetensors_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="save the checkpoint with safe_serialization"):
        checkpoint_digest(tmp_path)


def test_an_incarnation_that_publishes_a_version_again_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert snapshot_folder(tmp_path, "r", "a", 2, 18) == tmp_path / "r" / "a" / "v00000018-i0002"


# Opening --------------------------------------------------------------------------------------------------------------


def test_a_whole_snapshot_opens_and_verifies(tmp_path: Path, published: Path) -> None:
    for uri in (str(published), published.as_uri(), str(published.relative_to(tmp_path)), f"{published}/"):
        snapshot = open_snapshot(uri, tmp_path)
        assert snapshot.folder == published
        assert snapshot.files() == [published / "model.safetensors"]
        verify_digests(snapshot)


def test_a_url_with_escapes_is_a_path(tmp_path: Path) -> None:
    root = tmp_path / "my weights"
    folder = publish(root, {"model.safetensors": CONTENT})
    assert "%20" in folder.as_uri()
    assert open_snapshot(folder.as_uri(), root).folder == folder


def test_shards_are_one_snapshot(tmp_path: Path) -> None:
    halves = {name: {name: CONTENT[name]} for name in CONTENT}
    folder = publish(tmp_path, {f"{name}.safetensors": content for name, content in halves.items()})
    snapshot = open_snapshot(str(folder), tmp_path)
    verify_digests(snapshot)
    assert {tensor.name for tensor in snapshot.manifest.tensors} == CONTENT.keys()


@pytest.mark.parametrize(
    "uri", ["..", "../other", "/etc", "file:///etc", "", ".", "run/../../x", "\x00", "file://%00", "x" * 5000]
)
def test_nothing_outside_the_folder_is_opened(tmp_path: Path, uri: str) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    publish(tmp_path / "other", {"model.safetensors": CONTENT})
    with pytest.raises(SnapshotError):
        open_snapshot(uri, root)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = publish(tmp_path / "other", {"model.safetensors": CONTENT})
    root = tmp_path / "weights"
    root.mkdir()
    (root / "v1").symlink_to(outside)
    with pytest.raises(SnapshotError, match="outside the weights folder"):
        open_snapshot("v1", root)


@pytest.mark.parametrize("name", ["model.safetensors", MANIFEST])
def test_a_linked_file_is_refused(tmp_path: Path, published: Path, name: str) -> None:
    moved = tmp_path / "elsewhere"
    (published / name).rename(moved)
    (published / name).symlink_to(moved)
    with pytest.raises(SnapshotError):
        open_snapshot(str(published), tmp_path)


def test_a_folder_that_is_not_finished_is_refused_with_the_remedy(tmp_path: Path, published: Path) -> None:
    (published / MANIFEST).unlink()
    with pytest.raises(SnapshotError, match=r"no manifest.json there; publish the whole folder before"):
        open_snapshot(str(published), tmp_path)


def _shorter(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)


def _file_gone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _other_tensor(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["tensors"][0].update(name="zzz"))


def _other_shape(folder: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        (entry,) = [t for t in manifest["tensors"] if t["name"] == "b"]
        entry["shape"] = [4]

    edit(folder, change)


def _twice(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["tensors"].append(manifest["tensors"][0]))


def _other_state(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(state_digest="0" * 64))


def _path_in_name(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["files"][0].update(name="../model.safetensors"))


def _pickle(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["files"][0].update(name="pytorch_model.bin"))


def _other_format(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(format="corl-weights-2"))


def _unknown_kind(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(kind="delta"))


def _no_json(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"run": ')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_shorter, "bytes, the manifest says"),
        (_file_gone, "named in the manifest but not there"),
        (_other_tensor, "differ in tensors"),
        (_other_shape, r"tensor 'b' is F32 \[2, 2\], the manifest says F32 \[4\]"),
        (_twice, "names a tensor twice"),
        (_other_state, "state_digest does not follow"),
        (_path_in_name, "field files.0.name"),
        (_pickle, "field files.0.name"),
        (_other_format, "field format"),
        (_unknown_kind, "field kind"),
        (_no_json, "Invalid JSON"),
    ],
)
def test_what_does_not_agree_is_refused_before_a_tensor_is_read(
    tmp_path: Path, published: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(published)
    with pytest.raises(SnapshotError, match=message):
        open_snapshot(str(published), tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = publish(tmp_path, {"one.safetensors": CONTENT})
    (folder / "two.safetensors").write_bytes(safetensors({"a": CONTENT["a"]}))
    size = (folder / "two.safetensors").stat().st_size
    edit(folder, lambda manifest: manifest["files"].append({"name": "two.safetensors", "bytes": size}))
    with pytest.raises(SnapshotError, match="'a' is stored twice"):
        open_snapshot(str(folder), tmp_path)


# Digests --------------------------------------------------------------------------------------------------------------


def opened(tmp_path: Path, folder: Path) -> Snapshot:
    return open_snapshot(str(folder), tmp_path)


@pytest.mark.parametrize("name", ["a", "b", "scalar"])
def test_a_flipped_bit_is_found_in_any_tensor(tmp_path: Path, published: Path, name: str) -> None:
    path = published / "model.safetensors"
    (meta,) = [meta for meta in read_header(path) if meta.name == name]
    content = bytearray(path.read_bytes())
    content[meta.begin] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=f"tensor '{name}' does not have the digest"):
        verify_digests(opened(tmp_path, published))


def test_a_flip_in_the_first_of_many_large_tensors_is_found(tmp_path: Path) -> None:
    """The others are still being hashed when it is."""
    content = {f"t{i:03d}": ("U8", [1 << 20], bytes([i]) * (1 << 20)) for i in range(40)}
    folder = publish(tmp_path, {"model.safetensors": content})
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(read_header(path)[0].begin)
        file.write(b"\xff")
    with pytest.raises(SnapshotError, match="'t000'"):
        verify_digests(opened(tmp_path, folder))


def test_a_manifest_that_lies_about_a_digest_is_found(tmp_path: Path, published: Path) -> None:
    manifest = Manifest.model_validate_json((published / MANIFEST).read_bytes())
    lying = [tensor.model_copy(update={"digest": "0" * 64}) for tensor in manifest.tensors]
    changed = manifest.model_copy(update={"tensors": lying, "state_digest": state_digest(lying)})
    (published / MANIFEST).write_text(changed.model_dump_json())
    with pytest.raises(SnapshotError, match="does not have the digest"):
        verify_digests(opened(tmp_path, published))
