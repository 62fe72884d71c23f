"""Files of prompts and completions: read, asked about, and written so that a run that was stopped can go on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from corl.adapters.texts import completion_text, prompt_of
from corl.client import JudgeClient
from corl.errors import CorlError
from corl.wire import Options, Policy, ScoredItem, ScoreItem, ScoresRequest, Task

__all__ = ["Row", "RowsError", "Sink", "key_of", "read_rows", "score_rows"]


class RowsError(CorlError):
    """A file of rows, or one written before, is wrong. The message names file, line, field and remedy."""


class RawRow(BaseModel):
    model_config = ConfigDict(extra="allow")

    prompt: Any
    completions: list[Any] | None = None
    completion: Any = None
    id: str | int | None = None
    problem_id: str | int | None = None
    task: Task | None = None
    options: Options | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file, numbered from 1; `id` is its own, if it has one."""

    line: int
    id: str | int | None
    item: ScoreItem


def read_rows(path: Path, task: Task) -> list[Row]:
    """All rows of a JSON Lines file, empty lines left out. Raises RowsError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise RowsError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise RowsError(f"{path}: cannot be read: {why}") from error
    rows = [_row(path, number, line, task) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RowsError(f'{path}: holds no rows: write one {{"prompt": ..., "completions": [...]}} a line')
    return rows


def _row(path: Path, number: int, line: str, task: Task) -> Row:
    where = f"{path}:{number}"
    try:
        raw = RawRow.model_validate_json(line)
        given = raw.completions if raw.completions is not None else [raw.completion]
        if raw.completions is None and raw.completion is None:
            raise RowsError(f"{where}: completions: missing: give a list, or one as completion")
        completions = [completion_text(text, f"completions.{index}") for index, text in enumerate(given)]
        item = ScoreItem(
            id=str(number),
            problem_id=str(number if raw.problem_id is None else raw.problem_id),
            prompt=prompt_of(raw.prompt),
            completions=completions,
            task=raw.task or task,
            options=raw.options,
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "row"
        raise RowsError(f"{where}: {field}: {first['msg']}") from error
    except ValueError as error:
        raise RowsError(f"{where}: {error}") from error
    return Row(number, raw.id, item)


def key_of(row: Row, policy: Policy) -> str:
    """What a row of the output is the answer to: place, content and policy."""
    asked = json.dumps([row.line, row.id, row.item.model_dump(mode="json"), policy.model_dump(mode="json")])
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def score_rows(client: JudgeClient, rows: Sequence[Row], policy: Policy, *, histogram: bool) -> list[ScoredItem]:
    """One request. Raises JudgeError."""
    request = ScoresRequest(items=[row.item for row in rows], policy=policy, histogram=histogram)
    return client.scores(request).items


class Sink:
    """The output: lines are added at its end, and those of an earlier run are kept. `done` are their keys."""

    def __init__(self, stream: IO[str] | None, done: Collection[str], *, owned: bool) -> None:
        self.done = set(done)
        self._stream = stream
        self._owned = owned

    @classmethod
    def open(cls, path: Path | None, keys: Collection[str], *, quiet: bool = False) -> Sink:
        """Without a path, standard output, or with `quiet` nothing. A line that was cut off is dropped.

        Raises RowsError if the file holds rows that do not answer to `keys`.
        """
        if path is None:
            return cls(None if quiet else sys.stdout, (), owned=False)
        try:
            done, end = _done(path, set(keys)) if path.exists() else (set[str](), 0)
            if path.exists():
                os.truncate(path, end)
            return cls(path.open("a", encoding="utf-8"), done, owned=True)
        except OSError as error:
            raise RowsError(f"{path}: cannot be written: {error}") from error

    def write(self, key: str, row: Row, item: ScoredItem) -> None:
        if self._stream is None:
            return
        vote = None
        if item.vote is not None:
            fields = {"status", "answer", "count", "parsed", "total", "share", "runner_up", "source", "weights"}
            vote = item.vote.model_dump(mode="json", include=fields)
        line = {
            "key": key,
            "line": row.line,
            "id": row.id,
            "problem_id": item.problem_id,
            "status": item.status,
            "rewards": item.rewards,
            "answers": item.answers,
            "vote": vote,
        }
        self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """What was written outlives this process, and if it is a file, this machine."""
        if self._stream is not None:
            self._stream.flush()
            if self._owned:
                os.fsync(self._stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None and self._owned:
            self._stream.close()


def _done(path: Path, keys: set[str]) -> tuple[set[str], int]:
    """Keys of the whole lines, and where the last of them ends."""
    done: set[str] = set()
    end = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            key = json.loads(line)["key"]
        except (ValueError, TypeError, KeyError) as error:
            raise RowsError(f"{path}:{number}: not written by `corl score`: give another --output") from error
        if key not in keys:
            raise RowsError(
                f"{path}:{number}: was scored from other rows or with another policy: give another --output"
            )
        done.add(key)
        end += len(line)
    return done, end
