"""The cohort as it runs, written into the run's folder.

Judges and trainers of a run read this copy. So a run does not change when its file is edited, needs neither a network
nor the `datasets` package for its problems in any process but the launcher, and holds no answer of a training problem
unless the reward source is `truth`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corl.cohort import ORIGINAL, Cohort, load_heldout, load_problems
from corl.yaml_lines import dump_yaml

__all__ = ["materialize"]


def materialize(cohort: Cohort, folder: Path) -> None:
    """Write `folder/cohort.yaml` and `folder/problems/`. Raises CohortError, OSError."""
    problems = load_problems(cohort)
    data = cohort.model_dump(mode="json", exclude_unset=True, exclude={"preset", "problems"})
    for name in cohort.members:
        data["members"][name]["model"] = cohort.model_path(name)
    if cohort.weights is not None:
        data["weights"] = str(cohort.resolve(cohort.weights))
    files = folder / "problems"
    files.mkdir(exist_ok=True)
    sources: dict[str, Any] = {"task": cohort.problems.task, "views": {}}
    if cohort.problems.options is not None:
        sources["options"] = cohort.problems.options
    for number, view in enumerate(problems.texts):
        path = files / ("train.jsonl" if view == ORIGINAL else f"view-{number}.jsonl")
        answered = view == ORIGINAL and problems.answers is not None
        rows = (
            _row(key, problems.text(key, view), problems.answer(key) if answered else None, problems.options(key))
            for key in problems.ids
        )
        source = _write(path, rows, options=bool(problems.own_options))
        if view == ORIGINAL:
            sources["train"] = source
        else:
            sources["views"][view] = source
    heldout = load_heldout(cohort)
    if heldout:
        rows = (_row(item.problem_id, item.problem, item.answer, item.options) for item in heldout)
        any_options = any(item.options is not None for item in heldout)
        sources["heldout"] = _write(files / "heldout.jsonl", rows, options=any_options)
    data["problems"] = sources
    text = f"# Written by `corl run` from {cohort.path}.\n{dump_yaml(data)}"
    copy = folder / "cohort.yaml"
    copy.unlink(missing_ok=True)
    # Readable by its owner alone: the Redis URL may hold a password.
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _row(key: str, problem: str, answer: str | None, options: Any) -> dict[str, Any]:
    row = {"problem_id": key, "problem": problem, "answer": answer, "options": options}
    return {name: value for name, value in row.items() if value is not None}


def _write(path: Path, rows: Iterable[Mapping[str, Any]], *, options: bool) -> dict[str, Any]:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return {"path": f"problems/{path.name}", **({"columns": {"options": "options"}} if options else {})}
