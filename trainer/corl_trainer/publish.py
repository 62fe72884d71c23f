"""Publishing weights: a stream of gathered tensors becomes an immutable snapshot folder.

Files first, manifest last, all of it flushed to disk, then one atomic rename: a folder that can be seen is whole. A
published folder is never touched again (a reader that has it mapped would die of SIGBUS) except to be deleted, and that
only behind the replicas that could still read it (`retire`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corl.weights import (
    MANIFEST,
    FileEntry,
    Manifest,
    TensorEntry,
    read_header,
    snapshot_folder,
    state_digest,
    tensor_digest,
)
from corl.wire import WeightsStatus
from corl_trainer.stops import StorageFailed

if TYPE_CHECKING:
    import torch

__all__ = ["Publisher", "SnapshotWriter", "fsync_tree", "newest_incarnation", "served_dtypes"]

SHARD_BYTES = 4 << 30
HASHING_THREADS = 4
FOLDER = re.compile(r"^v(\d{8,})-i(\d{4,})$")
PARTIAL = ".partial-"


@cache
def served_dtypes(model: str, revision: str | None = None) -> dict[str, str]:
    """safetensors dtype of each tensor of a checkpoint: a folder, or a hub id whose files are in the cache by now.

    Snapshots keep these: a judge was started from them, so version 0 has the digest that it has already loaded, and
    float32 master weights of a bfloat16 model are handed over at half the size. Empty for a checkpoint that has no
    safetensors.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(model, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            return {}
    return {meta.name: meta.dtype for path in sorted(folder.glob("*.safetensors")) for meta in read_header(path)}


@dataclass
class SnapshotWriter:
    """Writes one snapshot tensor by tensor, holding at most a shard of it. Use as a context manager; then `commit`.

    Left without a commit, it removes what it wrote.
    """

    target: Path
    shard_bytes: int = SHARD_BYTES
    _shard: dict[str, torch.Tensor] = field(default_factory=dict, init=False)
    _shard_size: int = field(default=0, init=False)
    _files: list[FileEntry] = field(default_factory=list, init=False)
    _tensors: list[TensorEntry] = field(default_factory=list, init=False)

    def __enter__(self) -> SnapshotWriter:
        if self.target.exists():
            raise StorageFailed(f"{self.target} is already published: a snapshot is never rewritten")
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Where it is written before it is seen."""
        return self.target.parent / f"{PARTIAL}{self.target.name}"

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """`tensor` on the CPU, not to be changed before `commit`."""
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()
        if self._shard and self._shard_size + size > self.shard_bytes:
            self._flush()
        self._shard[name] = tensor
        self._shard_size += size

    def commit(self, *, run: str, member: str, incarnation: int, version: int, tied: Mapping[str, str]) -> Manifest:
        """Make the snapshot visible. Raises OSError with nothing visible."""
        self._flush()
        dtypes = sorted({tensor.dtype for tensor in self._tensors})
        manifest = Manifest(
            run=run,
            member=member,
            incarnation=incarnation,
            version=version,
            step=version,
            dtype=dtypes[0] if len(dtypes) == 1 else "mixed",
            tied=dict(tied),
            files=self._files,
            tensors=self._tensors,
            state_digest=state_digest(self._tensors),
        )
        (self.folder / MANIFEST).write_text(manifest.model_dump_json())
        fsync_tree(self.folder)
        os.rename(self.folder, self.target)
        _fsync(self.target.parent)
        return manifest

    def _flush(self) -> None:
        if not self._shard:
            return
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = self.folder / f"model-{len(self._files) + 1:05d}.safetensors"
        # Hashing releases the interpreter's lock: it goes on beside the writing.
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            digests = {name: pool.submit(tensor_digest, _content(tensor)) for name, tensor in self._shard.items()}
            try:
                save_file(self._shard, path, metadata={"format": "pt"})
            except SafetensorError as error:  # its own class for what the file system says
                raise OSError(str(error)) from error
        for meta in read_header(path):
            digest = digests[meta.name].result()
            self._tensors.append(TensorEntry(name=meta.name, shape=list(meta.shape), dtype=meta.dtype, digest=digest))
        self._files.append(FileEntry(name=path.name, bytes=path.stat().st_size))
        self._shard.clear()
        self._shard_size = 0


@dataclass(frozen=True)
class Publisher:
    """Publishes the versions of one member in one incarnation of its trainer, under `root`.

    `dtypes` gives the dtypes to publish in by name, asked for at the first version: by then the model is loaded.
    """

    root: Path
    run: str
    member: str
    incarnation: int
    dtypes: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    keep: int = 2
    shard_bytes: int = SHARD_BYTES

    def write(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], tied: Mapping[str, str]
    ) -> tuple[str, Manifest]:
        """(uri relative to `root`, manifest). Raises StorageFailed with nothing half-written."""
        target = snapshot_folder(self.root, self.run, self.member, self.incarnation, version)
        dtypes = self.dtypes()
        try:
            with SnapshotWriter(target, self.shard_bytes) as writer:
                for name, tensor in tensors:
                    writer.add(name, _served(tensor, dtypes.get(name)))
                manifest = writer.commit(
                    run=self.run, member=self.member, incarnation=self.incarnation, version=version, tied=tied
                )
        except OSError as error:
            raise StorageFailed(
                f"weights of step {version} could not be written to {target}: {error}; free space there, "
                "or name another folder with --weights; then resume"
            ) from error
        return target.relative_to(self.root).as_posix(), manifest

    def clear_partial(self) -> None:
        """Remove what a killed trainer of this member left half-written."""
        for folder in self._home().glob(f"{PARTIAL}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def retire(self, status: WeightsStatus) -> list[str]:
        """Delete published versions that no replica can need any more; their names.

        Kept: the last `keep`, the desired one, and all from the oldest that a live replica has loaded. A replica whose
        loaded weights are not known keeps everything: it may be reading any of them.
        """
        published = sorted(_published(self._home()))
        loaded = [replica.loaded for replica in status.replicas]
        if not published or status.desired is None or any(tag is None for tag in loaded):
            return []
        marks = [(tag.incarnation, tag.version) for tag in [*loaded, status.desired] if tag is not None]
        oldest = min(marks)
        retired = []
        for incarnation, version in published[: -self.keep]:
            if (incarnation, version) < oldest:
                folder = snapshot_folder(self.root, self.run, self.member, incarnation, version)
                shutil.rmtree(folder, ignore_errors=True)
                retired.append(folder.name)
        return retired

    def _home(self) -> Path:
        return snapshot_folder(self.root, self.run, self.member, 0, 0).parent


def newest_incarnation(root: Path, run: str, member: str) -> int:
    """The highest incarnation that has published anything; 0 if none has."""
    home = snapshot_folder(root, run, member, 0, 0).parent
    return max((incarnation for incarnation, _ in _published(home)), default=0)


def fsync_tree(folder: Path) -> None:
    """Flush every file below `folder`, and the folders, to disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            _fsync(Path(parent) / name)
        _fsync(Path(parent))


def _published(home: Path) -> Iterator[tuple[int, int]]:
    """(incarnation, version) of a member's snapshots."""
    if home.is_dir():
        for folder in home.iterdir():
            if match := FOLDER.match(folder.name):
                yield int(match[2]), int(match[1])


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can flush a folder
            os.fsync(handle)
    finally:
        os.close(handle)


def _served(tensor: torch.Tensor, stored: str | None) -> torch.Tensor:
    dtype = _torch_dtype(stored)
    if dtype is None or not tensor.is_floating_point() or not dtype.is_floating_point:
        dtype = tensor.dtype
    return tensor.detach().to(device="cpu", dtype=dtype, copy=True)


def _torch_dtype(name: str | None) -> torch.dtype | None:
    import torch

    return {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(name or "")


def _content(tensor: torch.Tensor) -> Any:
    """Its little-endian bytes, without a copy."""
    import sys

    import torch

    if sys.byteorder != "little":
        raise StorageFailed("publishing needs a little-endian machine")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
