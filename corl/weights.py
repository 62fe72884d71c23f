"""Published weights: the manifest, the digests and the checks that both sides of a weight hand-over share.

A snapshot is a folder of safetensors files and a `manifest.json`, made visible by one atomic rename and never changed
after. A flipped bit or a hole in a safetensors file loads silently, so identity is a digest of the tensors' content and
not of a path. Layout of a safetensors file: https://huggingface.co/docs/safetensors (8 bytes little-endian header
length, JSON header, tensor bytes little-endian and contiguous).
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = [
    "MANIFEST",
    "FileEntry",
    "Manifest",
    "Snapshot",
    "SnapshotError",
    "TensorEntry",
    "TensorMeta",
    "checkpoint_digest",
    "open_snapshot",
    "read_header",
    "snapshot_folder",
    "state_digest",
    "tensor_digest",
    "tensor_entries",
    "verify_digests",
]

MANIFEST = "manifest.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_THREADS = 8
BITS = {
    **dict.fromkeys(["F64", "I64", "U64", "C64"], 64),
    **dict.fromkeys(["F32", "I32", "U32"], 32),
    **dict.fromkeys(["F16", "BF16", "I16", "U16"], 16),
    **dict.fromkeys(["F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"], 8),
    **dict.fromkeys(["F6_E2M3", "F6_E3M2"], 6),
    "F4": 4,
}


class SnapshotError(Exception):
    """A snapshot is missing, outside the weights folder, incomplete, or not what its manifest says."""


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors$")
    bytes: int = Field(ge=8)


class TensorEntry(BaseModel):
    """`dtype` as safetensors spells it (F32, BF16, ...); `digest` is SHA-256 of the little-endian bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    shape: list[int]
    dtype: str
    digest: str


class Manifest(BaseModel):
    """What a snapshot holds. `tied` maps a tensor that is not stored to the stored one that it shares."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["corl-weights-1"] = "corl-weights-1"
    run: str
    member: str
    incarnation: int = Field(ge=1)
    version: int = Field(ge=0)
    step: int = Field(ge=0)
    kind: Literal["full"] = "full"
    dtype: str
    tied: dict[str, str] = {}
    files: list[FileEntry] = Field(min_length=1)
    tensors: list[TensorEntry] = Field(min_length=1)
    state_digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot whose manifest, files and headers agree. Its digests are not proven until `verify_digests`."""

    folder: Path
    manifest: Manifest

    def files(self) -> list[Path]:
        return [self.folder / entry.name for entry in self.manifest.files]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Where a tensor lies in its file: `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensor_digest(content: bytes | bytearray | memoryview | mmap.mmap) -> str:
    """SHA-256 in hex of a tensor's little-endian contiguous bytes."""
    return hashlib.sha256(content).hexdigest()


def state_digest(tensors: Iterable[TensorEntry]) -> str:
    """SHA-256 over the lines `name dtype shape digest`, sorted: independent of files, order and sharding."""
    lines = sorted(f"{t.name} {t.dtype} {'x'.join(map(str, t.shape))} {t.digest}\n" for t in tensors)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_header(path: Path) -> list[TensorMeta]:
    """The tensors of a safetensors file in the order of their bytes. Raises SnapshotError.

    Their bytes must be of the size that shape and dtype say and fill the file without a hole or an overlap.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise SnapshotError(f"{path}: not a safetensors file (header of {length} bytes in a file of {size})")
        raw = file.read(length)
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
        metas = [_tensor_meta(name, entry, 8 + length) for name, entry in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"{path}: unreadable safetensors header ({error!r})") from error
    metas.sort(key=lambda meta: (meta.begin, meta.end))
    end = 8 + length
    for meta in metas:
        bits = BITS.get(meta.dtype)
        if (
            bits is None
            or min(meta.shape, default=0) < 0
            or math.prod(meta.shape) * bits != 8 * (meta.end - meta.begin)
        ):
            raise SnapshotError(
                f"{path}: tensor {meta.name!r} of {meta.dtype} {list(meta.shape)} has {meta.end - meta.begin} bytes"
            )
        if meta.begin != end:
            raise SnapshotError(
                f"{path}: tensor {meta.name!r} begins at byte {meta.begin}, the one before ends at {end}"
            )
        end = meta.end
    if end != size:
        raise SnapshotError(f"{path}: the last tensor lies outside the file: it ends at byte {end} of {size}")
    return metas


def _tensor_meta(name: str, entry: Any, start: int) -> TensorMeta:
    begin, end = (int(offset) + start for offset in entry["data_offsets"])
    return TensorMeta(name, str(entry["dtype"]), tuple(int(d) for d in entry["shape"]), begin, end)


def tensor_entries(files: Iterable[Path]) -> Iterator[TensorEntry]:
    """Every tensor of the files with its digest: one pass over all bytes, holding none of them.

    Tensors are hashed by several threads: one core hashes about as fast as a disk reads, and a judge waits for it.
    """
    for path in files:
        metas = read_header(path)
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            # The last to be entered, so that no thread still reads when the file is unmapped.
            ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "digest") as pool,
        ):
            for meta, digest in zip(metas, pool.map(partial(_digest, view), metas), strict=True):
                yield TensorEntry(name=meta.name, shape=list(meta.shape), dtype=meta.dtype, digest=digest)


def _digest(view: memoryview, meta: TensorMeta) -> str:
    with view[meta.begin : meta.end] as content:
        return tensor_digest(content)


def checkpoint_digest(folder: Path) -> str:
    """state_digest of a Hugging Face folder's `*.safetensors`. Raises SnapshotError if it has none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SnapshotError(f"{folder}: no *.safetensors file; save the checkpoint with safe_serialization")
    return state_digest(tensor_entries(files))


def snapshot_folder(root: Path, run: str, member: str, incarnation: int, version: int) -> Path:
    """Where a version is published. The incarnation is part of the name, since a resumed trainer may publish a version
    number again with other content and a published folder is never rewritten."""
    return root / run / member / f"v{version:08d}-i{incarnation:04d}"


def open_snapshot(uri: str, root: Path) -> Snapshot:
    """Find a snapshot inside `root` and check all that can be checked without reading the tensors.

    `uri` is a path, absolute or relative to `root`, or a `file://` URL. Raises SnapshotError.
    """
    try:
        folder = _locate(uri, root)
        manifest = _read_manifest(folder / MANIFEST)
        _check_files(folder, manifest)
    except OSError as error:
        raise SnapshotError(f"uri {uri[:200]!r}: {error.strerror or error}") from error
    return Snapshot(folder, manifest)


def _locate(uri: str, root: Path) -> Path:
    raw = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
    if "\x00" in raw:
        raise SnapshotError("uri holds a NUL byte")
    base = root.resolve()
    folder = Path(os.path.normpath(base / raw))
    if not folder.resolve().is_relative_to(base) or folder.resolve() == base:
        raise SnapshotError(f"uri {uri!r} is outside the weights folder {str(root)!r}: publish inside it")
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise SnapshotError(f"uri {uri!r}: no {MANIFEST} there; publish the whole folder before announcing it")
    return folder


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise SnapshotError(f"{path}: field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _check_files(folder: Path, manifest: Manifest) -> None:
    stored: dict[str, TensorMeta] = {}
    for entry in manifest.files:
        path = folder / entry.name
        if not path.is_file() or path.is_symlink():
            raise SnapshotError(f"{path}: named in the manifest but not there as a plain file")
        if path.stat().st_size != entry.bytes:
            raise SnapshotError(f"{path}: {path.stat().st_size} bytes, the manifest says {entry.bytes}")
        for meta in read_header(path):
            if meta.name in stored:
                raise SnapshotError(f"{path}: tensor {meta.name!r} is stored twice")
            stored[meta.name] = meta
    named = {tensor.name: tensor for tensor in manifest.tensors}
    if len(named) != len(manifest.tensors):
        raise SnapshotError(f"{folder}: the manifest names a tensor twice")
    if stored.keys() != named.keys():
        odd = sorted(stored.keys() ^ named.keys())[:3]
        raise SnapshotError(f"{folder}: manifest and files differ in tensors {odd}")
    for name, tensor in named.items():
        if (stored[name].dtype, list(stored[name].shape)) != (tensor.dtype, tensor.shape):
            raise SnapshotError(
                f"{folder}: tensor {name!r} is {stored[name].dtype} {list(stored[name].shape)}, "
                f"the manifest says {tensor.dtype} {tensor.shape}"
            )
    if state_digest(manifest.tensors) != manifest.state_digest:
        raise SnapshotError(f"{folder}: state_digest does not follow from the manifest's tensors")


def verify_digests(snapshot: Snapshot) -> None:
    """Read every tensor and compare its digest with the manifest's. Raises SnapshotError naming one that differs."""
    wanted = {tensor.name: tensor.digest for tensor in snapshot.manifest.tensors}
    for entry in tensor_entries(snapshot.files()):
        if entry.digest != wanted.get(entry.name):
            raise SnapshotError(
                f"{snapshot.folder}: tensor {entry.name!r} does not have the digest in the manifest; publish it again"
            )
