"""Prompts and completions as trainers hand them over: text, or chat messages in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from corl.wire import Message

__all__ = ["ChatPrompt", "Conversational", "completion_text", "prompt_of"]

Conversational = str | Sequence[Mapping[str, Any]]
"""Text, or messages with `role` and `content`; content is text or parts of type text."""
ChatPrompt = str | list[Message]

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def prompt_of(prompt: Conversational, where: str = "prompt") -> ChatPrompt:
    """A prompt as the judge takes it. Raises ValueError naming `where` and what is wrong with it."""
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"{where} is empty: give the problem's text or its chat messages")
        return prompt
    if not _are_messages(prompt):
        raise ValueError(f"{where}: expected text or a list of chat messages, got {_shown(prompt)}")
    messages = []
    for index, message in enumerate(prompt):
        at = f"{where}.{index}"
        role = ROLES.get(str(message.get("role")))
        if role is None:
            raise ValueError(f"{at}.role is {message.get('role')!r}: a judge takes {', '.join(ROLES)}")
        messages.append(Message(role=role, content=_text(message.get("content"), f"{at}.content")))
    return messages


def completion_text(completion: Conversational, where: str = "completion") -> str:
    """What is graded: the text, or that of the last message if it is the assistant's.

    A conversation that ends with a tool's message, or without content, gave no answer: its text is empty.
    Raises ValueError.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and not completion:
        return ""
    if not _are_messages(completion):
        raise ValueError(f"{where}: expected text or a list of chat messages, got {_shown(completion)}")
    if completion[-1].get("role") != "assistant":
        return ""
    content = completion[-1].get("content")
    return "" if content is None else _text(content, f"{where}.{len(completion) - 1}.content")


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(f"{where}: expected text or a list of parts, got {_shown(content)}")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError(f"{where}.{index}: expected a part of type text, got {_shown(part)}")
        texts.append(part["text"])
    return "".join(texts)


def _are_messages(prompt: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(message, Mapping) for message in prompt)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
