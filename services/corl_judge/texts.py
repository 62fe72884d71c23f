"""What a member is asked when somebody wants its vote on a problem: its own view's text, in the cohort's format."""

from __future__ import annotations

from dataclasses import dataclass

from corl.cohort import Cohort, load_cohort, load_problems
from corl.problems import ProblemSet
from corl.wire import Prompt
from corl_judge.settings import Settings

__all__ = ["OwnTexts"]


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """The member's view of the cohort file's problems; without a cohort file it has none."""

    cohort: Cohort | None
    problems: ProblemSet | None
    view: str
    run: str | None

    @classmethod
    def load(cls, settings: Settings) -> OwnTexts:
        """Read the cohort file and its problems. Raises CohortError."""
        if settings.cohort_file is None:
            return cls(None, None, "original", settings.run)
        cohort = load_cohort(settings.cohort_file)
        return cls(cohort, load_problems(cohort), cohort.members[settings.member].view, settings.run)

    def prompt(self, run: str | None, problem_id: str, *, chat: bool) -> Prompt | None:
        """The member's own prompt if the run is the cohort's and the id is in its file; None: take the asker's text."""
        return None if run is None or self.run not in (None, run) else self.own_prompt(problem_id, chat=chat)

    def own_prompt(self, problem_id: str, *, chat: bool) -> Prompt | None:
        """The member's own prompt of a problem of the cohort file, whatever the run; None if it has none of that id."""
        if self.cohort is None or self.problems is None or problem_id not in self.problems.texts[self.view]:
            return None
        text = self.problems.text(problem_id, self.view)
        return list(self.cohort.prompt.messages(text)) if chat else self.cohort.prompt.text(text)
