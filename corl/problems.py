"""Training problems in all their views, and held-out ones with answers: two loads that never mix.

An answer of a training problem leaves this module only for the reward source `truth`; for every other source it is
dropped row by row while reading, so that no later mistake can reward with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corl.cohort_models import ORIGINAL, Cohort
from corl.errors import CohortError
from corl.problem_sources import Row, read_rows
from corl.wire import Options

__all__ = ["HeldOut", "ProblemSet", "load_heldout", "load_problems"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A problem for evaluation alone."""

    problem_id: str
    problem: str
    answer: str
    options: Options | None = None


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Training problems. `ids` is in the file's order and the same for every member; texts differ by view."""

    ids: list[str]
    texts: Mapping[str, Mapping[str, str]] = field(repr=False)
    answers: Mapping[str, str] | None = field(default=None, repr=False)
    own_options: Mapping[str, Options] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, problem_id: str, view: str = ORIGINAL) -> str:
        """A problem's text in a view. Raises CohortError if there is no such view or id."""
        if view not in self.texts:
            raise CohortError(f"no view {view!r}; there are {', '.join(self.texts)}")
        if problem_id not in self.texts[view]:
            raise CohortError(f"no problem {problem_id!r} in view {view!r}")
        return self.texts[view][problem_id]

    def answer(self, problem_id: str) -> str:
        """The right answer, for the reward source `truth`. Raises CohortError under any other: it is not held."""
        if self.answers is None:
            raise CohortError("training answers are not loaded: only reward source truth may read them")
        if problem_id not in self.answers:
            raise CohortError(f"no problem {problem_id!r}")
        return self.answers[problem_id]

    def options(self, problem_id: str) -> Options | None:
        """A choice problem's own options, if its row gives some; else `problems.options` holds."""
        return self.own_options.get(problem_id)


def load_problems(cohort: Cohort) -> ProblemSet:
    """Read the training problems and line the views up by id. Raises CohortError.

    Every view must have every id of `problems.train`, and no other unless `train` takes a part of its rows (`where`,
    `limit`).
    """
    if cohort._problems is not None:
        return cohort._problems
    settings = cohort.problems
    truth = cohort.reward == "truth"
    train = read_rows(cohort, settings.train, "problems.train", answers=truth)
    texts = {ORIGINAL: {key: row.problem for key, row in train.items()}}
    for view, source in settings.views.items():
        rows = read_rows(cohort, source, f"problems.views.{view}", answers=False)
        part = settings.train.limit is not None or bool(settings.train.where)
        _line_up(train, rows, view, part)
        texts[view] = {key: rows[key].problem for key in train}
    answers = {key: row.answer for key, row in train.items() if row.answer is not None} if truth else None
    options = {key: row.options for key, row in train.items() if row.options is not None}
    return ProblemSet(list(train), texts, answers, options)


def load_heldout(cohort: Cohort) -> list[HeldOut]:
    """Read the held-out problems with their answers; empty if the cohort has none. Raises CohortError."""
    source = cohort.problems.heldout
    if source is None:
        return []
    rows = read_rows(cohort, source, "problems.heldout", answers=True)
    return [HeldOut(key, row.problem, row.answer or "", row.options) for key, row in rows.items()]


def _line_up(train: Mapping[str, Row], rows: Mapping[str, Row], view: str, part: bool) -> None:
    missing = [key for key in train if key not in rows]
    extra = [] if part else [key for key in rows if key not in train]
    for keys, verb in ((missing, "lacks"), (extra, "has but problems.train lacks")):
        if keys:
            shown = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            where = next(iter(rows.values())).file if rows else "its file"
            raise CohortError(
                f"{where}: problems.views.{view}: {verb} {shown}: views hold the same problem ids as problems.train"
            )
