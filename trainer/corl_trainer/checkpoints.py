"""Checkpoints that are whole, and which of them to go on from.

A checkpoint counts once its marker is there, which is written last, after everything else was flushed to disk. A folder
without one was being written when the process died or the disk was full, and is never resumed from.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from corl_trainer.publish import fsync_tree
from corl_trainer.stops import SettingsError

__all__ = ["MARKER", "Best", "Checkpoints"]

logger = logging.getLogger(__name__)
MARKER = "complete.json"
FOLDER = re.compile(r"^checkpoint-(\d+)$")


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint with the highest held-out accuracy so far."""

    step: int
    accuracy: float


@dataclass(frozen=True)
class Checkpoints:
    """`<root>/checkpoint-N`, and `<root>/best.json`.

    Regular ones are those of every `every` steps. Kept are the last `keep` regular ones, which a cohort that is resumed
    together has in common, the newest of all, and the best.
    """

    root: Path
    keep: int = 3
    every: int = 1

    def folder(self, step: int) -> Path:
        return self.root / f"checkpoint-{step}"

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return sorted(step for step, folder in self._folders() if (folder / MARKER).is_file())

    def complete(self, step: int, incarnation: int, best: float | None = None) -> None:
        """Flush checkpoint N, mark it whole, note that it is the best so far with that accuracy, delete old ones."""
        folder = self.folder(step)
        fsync_tree(folder)
        _write_json(folder / MARKER, {"step": step, "incarnation": incarnation})
        if best is not None:
            _write_json(self.root / "best.json", {"step": step, "accuracy": best})
        self.prune()

    def prune(self) -> None:
        best = self.best()
        whole = self.steps()
        regular = [step for step in whole if step % self.every == 0]
        kept = {*regular[-self.keep :], *whole[-1:], *([best.step] if best else [])}
        for step, folder in self._folders():
            if step not in kept and (folder / MARKER).is_file():
                _remove(folder)

    def best(self) -> Best | None:
        try:
            raw = json.loads((self.root / "best.json").read_bytes())
            return Best(int(raw["step"]), float(raw["accuracy"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def resume(self, step: int | None) -> int:
        """The step to go on from: `step` if given, else the last whole checkpoint, else 0 (the start).

        What is later than it belongs to a future that will not happen, and what is not whole is of no use: both are
        deleted. Raises SettingsError, with nothing deleted, if there is no whole checkpoint of that step.
        """
        whole = self.steps()
        if step is None:
            step = whole[-1] if whole else 0
        elif step != 0 and step not in whole:
            have = ", ".join(map(str, whole)) or "none"
            raise SettingsError(
                f"--resume-step {step}: no whole checkpoint of that step in {self.root}; there are: {have}"
            )
        for found, folder in self._folders():
            if found > step or not (folder / MARKER).is_file():
                logger.warning("deleting %s: %s", folder, "later than the resume step" if found > step else "not whole")
                _remove(folder)
        best = self.best()
        if best is not None and best.step > step:
            (self.root / "best.json").unlink(missing_ok=True)
        return step

    def _folders(self) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        return [(int(match[1]), folder) for folder in self.root.iterdir() if (match := FOLDER.match(folder.name))]


def _remove(folder: Path) -> None:
    # The marker first: a deletion cut short must not leave what looks whole.
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, value: dict[str, object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
