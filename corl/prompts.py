"""From a problem's text to the chat messages that a member is asked with; the same in trainer and judge."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from corl.wire import Message

__all__ = ["PromptFormat"]


class PromptFormat(BaseModel):
    """`template` holds `{problem}` once; `system` becomes a system message.

    The paper appends "Please reason step by step, and put your final answer within \\boxed{}." to each problem.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    system: str | None = None
    template: str = Field("{problem}", description="text of the user message; {problem} stands for the problem")

    @field_validator("template")
    @classmethod
    def _has_problem(cls, template: str) -> str:
        if template.count("{problem}") != 1:
            raise ValueError(f"template {template!r} must hold {{problem}} exactly once")
        return template

    def text(self, problem: str) -> str:
        """The user message alone, for tokenizers without a chat template."""
        return self.template.replace("{problem}", problem)

    def messages(self, problem: str) -> list[Message]:
        user = Message(role="user", content=self.text(problem))
        return [user] if self.system is None else [Message(role="system", content=self.system), user]
