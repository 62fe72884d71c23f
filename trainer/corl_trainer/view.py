"""The training problems as one member sees them: its view's text, its prompt format, its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corl.cohort import Cohort, ProblemSet
from corl.wire import Message, Options

__all__ = ["MemberView"]


@dataclass(frozen=True)
class MemberView:
    """`chat`: whether the member's tokenizer has a chat template."""

    cohort: Cohort
    member: str
    problems: ProblemSet
    chat: bool

    def options(self, problem_id: str) -> Options | None:
        return self.problems.options(problem_id) or self.cohort.problems.options

    def question(self, problem_id: str) -> str:
        """The problem's text, without the prompt format around it."""
        return self.problems.text(problem_id, self.cohort.members[self.member].view)

    def format(self, text: str) -> str | list[Message]:
        """Chat messages where the tokenizer has a template for them, else the text."""
        form = self.cohort.prompt
        return form.messages(text) if self.chat else form.text(text)

    def prompt(self, problem_id: str) -> str | list[Message]:
        return self.format(self.question(problem_id))

    def row(self, slot: int, problem_id: str) -> dict[str, Any]:
        """A row of TRL's dataset."""
        prompt = self.prompt(problem_id)
        plain = [message.model_dump() for message in prompt] if isinstance(prompt, list) else prompt
        return {"slot": slot, "problem_id": problem_id, "prompt": plain}
