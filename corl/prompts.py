"""From a problem's text to the chat messages that a member is asked with; the same in trainer and judge."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from corl.wire import Message

__all__ = ["Example", "PromptFormat"]


class Example(BaseModel):
    """A problem and a completion as it should be: a turn of the user and one of the assistant."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    problem: str = Field(min_length=1)
    completion: str = Field(min_length=1, description="with the answer marked as completions must mark it")


class PromptFormat(BaseModel):
    """`template` holds `{problem}` once; `system` becomes a system message; `examples` come before the problem.

    Examples (few-shot prompting) show a base model, or a small one, what a completion looks like. They are turns of
    each member's own chat template; without one, texts with a blank line after each.
    The paper appends "Please reason step by step, and put your final answer within \\boxed{}." to each problem.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    system: str | None = None
    template: str = Field("{problem}", description="text of the user message; {problem} stands for the problem")
    examples: list[Example] = Field([], description="worked problems shown before each problem, in this order")

    @field_validator("template")
    @classmethod
    def _has_problem(cls, template: str) -> str:
        if template.count("{problem}") != 1:
            raise ValueError(f"template {template!r} must hold {{problem}} exactly once")
        return template

    def text(self, problem: str) -> str:
        """The prompt for tokenizers without a chat template: the system message is left out."""
        shown = "".join(_joined(self._asked(e.problem), e.completion) + "\n\n" for e in self.examples)
        return shown + self._asked(problem)

    def messages(self, problem: str) -> list[Message]:
        messages = [] if self.system is None else [Message(role="system", content=self.system)]
        for example in self.examples:
            messages.append(Message(role="user", content=self._asked(example.problem)))
            messages.append(Message(role="assistant", content=example.completion))
        return [*messages, Message(role="user", content=self._asked(problem))]

    def _asked(self, problem: str) -> str:
        return self.template.replace("{problem}", problem)


def _joined(asked: str, completion: str) -> str:
    """A space between the two, as a model writes one by itself, unless the template ends in one or in a new line."""
    return asked + completion if asked[-1:].isspace() else f"{asked} {completion}"
