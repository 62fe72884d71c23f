"""Rows of problems from JSON Lines, or from anything that Hugging Face `datasets` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corl.cohort_models import Cohort, Columns, ProblemSource
from corl.errors import CohortError
from corl.faults import Fault, nearest
from corl.wire import Options

__all__ = ["Row", "is_json_lines", "read_rows"]

JSON_LINES = (".jsonl", ".ndjson")
BUILDERS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class Row:
    """`answer` is None unless it was asked for. `place` is a line (JSON Lines) or a row number."""

    problem: str
    answer: str | None
    options: Options | None
    file: str
    place: int


@dataclass(frozen=True, slots=True)
class _Reader:
    """Where rows come from, for messages: `field` is the source's place in the cohort file."""

    source: ProblemSource
    field: str
    file: str
    counted: str

    def fault(self, place: int | None, message: str) -> CohortError:
        if self.counted == "line" or place is None:
            return CohortError(Fault(message, field=self.field, file=self.file, line=place))
        return CohortError(Fault(f"row {place}: {message}", field=self.field, file=self.file))


def is_json_lines(source: ProblemSource) -> bool:
    """Whether it is read by hand, at once and without a network."""
    return source.path is not None and source.path.suffix in JSON_LINES


def read_rows(cohort: Cohort, source: ProblemSource, field: str, *, answers: bool) -> dict[str, Row]:
    """Rows by problem id, in order. Answers are read only if asked for, and then every row must have one.

    Raises CohortError naming file, line or row, column and value.
    """
    path = cohort.resolve(source.path) if source.path is not None else None
    lines = is_json_lines(source)
    reader = _Reader(source, field, str(path or source.dataset), "line" if lines else "row")
    raw = _json_lines(path, reader) if path is not None and lines else _dataset_rows(cohort, path, reader)
    wanted = _wanted(source)
    rows: dict[str, Row] = {}
    for number, (place, record) in enumerate(raw):
        if not _kept(record, wanted, place, reader):
            continue
        key = _problem_id(record, number, place, reader)
        if key in rows:
            raise reader.fault(place, f"problem id {key!r} was given in {reader.counted} {rows[key].place} already")
        rows[key] = _row(record, place, reader, answers)
        if source.limit is not None and len(rows) == source.limit:
            break
    if not rows:
        raise reader.fault(None, "holds no problem" + (f" with {source.where}" if source.where else ""))
    return rows


def _row(record: dict[str, Any], place: int, reader: _Reader, answers: bool) -> Row:
    columns = reader.source.columns
    problem = _cell(record, columns.problem, "problem", place, reader)
    if not isinstance(problem, str) or not problem.strip():
        raise reader.fault(place, f"column {columns.problem!r} must hold the problem's text; got {problem!r}")
    answer = _answer(record, columns, place, reader) if answers else None
    options = None
    if columns.options is not None:
        options = _cell(record, columns.options, "options", place, reader)
        if not _is_options(options):
            raise reader.fault(
                place,
                f"column {columns.options!r} must be a list of texts or a map of letters to texts; got {options!r}",
            )
    return Row(problem, answer, options, reader.file, place)


def _answer(record: dict[str, Any], columns: Columns, place: int, reader: _Reader) -> str:
    name = columns.answer or "answer"
    answer = _cell(record, name, "answer", place, reader)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise reader.fault(place, f"column {name!r} must hold the answer; got {answer!r}")
    text = str(answer).strip()
    if columns.extract_answer:
        from corl.answers import extract

        found = extract(text)
        if found is None:
            raise reader.fault(place, f"column {name!r}: no answer in the solution that ends {text[-60:]!r}")
        return found
    return text


def _problem_id(record: dict[str, Any], number: int, place: int, reader: _Reader) -> str:
    name = reader.source.columns.problem_id
    if name is None:
        return str(number)
    value = _cell(record, name, "problem_id", place, reader, ", or set it to null to number the rows")
    if isinstance(value, bool) or not isinstance(value, str | int) or not 1 <= len(str(value)) <= 512:
        raise reader.fault(place, f"column {name!r} must hold an id of 1 to 512 characters; got {value!r}")
    return str(value)


def _cell(record: dict[str, Any], name: str, role: str, place: int, reader: _Reader, more: str = "") -> Any:
    if name not in record:
        columns = ", ".join(map(str, record)) or "none"
        remedy = f"there are {columns}: name it in {reader.field}.columns.{role}{more}"
        raise reader.fault(place, f"no column {name!r}; {remedy}")
    return record[name]


def _wanted(source: ProblemSource) -> dict[str, set[str]]:
    return {
        column: {_plain(value) for value in (values if isinstance(values, list) else [values])}
        for column, values in source.where.items()
    }


def _kept(record: dict[str, Any], wanted: dict[str, set[str]], place: int, reader: _Reader) -> bool:
    for column, values in wanted.items():
        if column not in record:
            remedy = nearest(column, record)
            raise reader.fault(place, f"no column {column!r}, which {reader.field}.where filters by; {remedy}")
        if _plain(record[column]) not in values:
            return False
    return True


def _plain(value: Any) -> str:
    """Values compare by their spelling, so that a level 3 in the cohort file finds a "3" in a dataset."""
    return json.dumps(value) if isinstance(value, bool) or value is None else str(value)


def _is_options(value: Any) -> bool:
    texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(value) and bool(texts) and all(isinstance(text, str) for text in texts)


def _json_lines(path: Path, reader: _Reader) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield line, _json_object(text, line, reader)
    except FileNotFoundError as error:
        raise reader.fault(None, "no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise reader.fault(None, f"cannot be read: {error}") from error


def _json_object(text: str, line: int, reader: _Reader) -> dict[str, Any]:
    try:
        # Numbers keep their spelling: 0.50 and 1e3 are answers as written.
        record = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise reader.fault(line, f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise reader.fault(line, f"must be a JSON object; got {text.strip()[:60]!r}")
    return record


def _dataset_rows(cohort: Cohort, path: Path | None, reader: _Reader) -> Iterable[tuple[int, dict[str, Any]]]:
    source = reader.source
    try:
        import datasets
    except ImportError as error:
        raise reader.fault(
            None, "needs the package datasets: pip install 'corl[trainer]', or give JSON Lines by `path`"
        ) from error
    folder = cohort.resolve(source.dataset) if source.dataset is not None else None
    try:
        if path is not None:
            if path.suffix not in BUILDERS:
                known = ", ".join([*JSON_LINES, *BUILDERS])
                raise reader.fault(None, f"ends in {path.suffix!r}; what is read: {known}")
            data = datasets.load_dataset(BUILDERS[path.suffix], data_files=str(path), split="train")
        elif folder is not None and folder.is_dir() and _saved_to_disk(folder):
            data = datasets.load_from_disk(str(folder))
        else:
            name = str(folder) if folder is not None and folder.is_dir() else source.dataset
            data = datasets.load_dataset(name, source.config, split=source.split, revision=source.revision)
        if isinstance(data, dict):
            if source.split not in data:
                raise reader.fault(None, f"no split {source.split!r}; {nearest(source.split, map(str, data))}")
            data = data[source.split]
    except CohortError:
        raise
    except Exception as error:  # whatever a builder, a file system or a hub raises
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise reader.fault(None, f"cannot be loaded: {first}") from error
    return enumerate(data)


def _saved_to_disk(folder: Path) -> bool:
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()
