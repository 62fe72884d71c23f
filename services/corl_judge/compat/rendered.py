"""The problem out of a prompt that its caller has already rendered in its own chat template, and the completion out of
prompt and completion decoded together.

The judge renders every prompt in its own member's template: a rendered one would be rendered twice.
"""

from __future__ import annotations

import re

from corl.wire import Message

__all__ = ["PRESETS", "compiled", "completion_of", "looks_rendered", "problem_of"]

PRESETS = {
    "chatml": r"<\|im_start\|>(?P<role>system|user|assistant)\n(?P<content>.*?)<\|im_end\|>",
    "llama3": r"<\|start_header_id\|>(?P<role>system|user|assistant)<\|end_header_id\|>\n\n"
    r"(?P<content>.*?)<\|eot_id\|>",
    "gemma": r"<start_of_turn>(?P<role>user|model)\n(?P<content>.*?)<end_of_turn>",
    "mistral": r"\[INST\] ?(?P<prompt>.*?) ?\[/INST\]",
    "deepseek": r"<｜User｜>(?P<prompt>.*?)<｜Assistant｜>",
}
"""Chat templates by name: each match is a message, or the whole problem."""

ROLES = {"model": "assistant"}
RENDERED = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|\[INST\]|<｜User｜>")
LONGEST_TOKEN = 80
TRAILING = re.compile(
    r"(?:<\|[^<>|\s]{1,64}\|>|<｜[^<>｜\s]{1,64}｜>|</s>|<s>|<eos>|<pad>|<end_of_turn>|<unk>|\[PAD\])\Z"
)


def compiled(template: str) -> re.Pattern[str]:
    """A preset by its name, or a pattern with a group `prompt`, or groups `role` and `content`. Raises ValueError."""
    if template not in PRESETS and not any(group in template for group in ("(?P<prompt>", "(?P<content>")):
        raise ValueError(
            f"{template!r} is neither one of {', '.join(PRESETS)} nor a pattern with a group (?P<prompt>...), "
            "or groups (?P<role>...) and (?P<content>...)"
        )
    try:
        pattern = re.compile(PRESETS.get(template, template), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{template!r} is no regular expression: {error}") from error
    groups = set(pattern.groupindex)
    if "prompt" not in groups and not {"role", "content"} <= groups:
        raise ValueError(f"{template!r} has a group content but none for the role: name it (?P<role>...)")
    return pattern


def looks_rendered(prompt: str) -> bool:
    """Whether a known chat template's tokens are in the text."""
    return RENDERED.search(prompt) is not None


def problem_of(prompt: str, pattern: re.Pattern[str]) -> str | list[Message] | None:
    """The problem's text, or its messages; None if the pattern does not fit the prompt."""
    if "prompt" in pattern.groupindex:
        found = pattern.search(prompt)
        return None if found is None else found["prompt"] or None
    messages = []
    for found in pattern.finditer(prompt):
        role = ROLES.get(found["role"], found["role"])
        if role not in ("system", "user", "assistant"):
            return None
        messages.append(Message.model_validate({"role": role, "content": found["content"]}))
    return messages or None


def completion_of(query: str, prompt: str) -> str | None:
    """What follows the prompt in both decoded together, without special tokens at its end; None if it is not there.

    Decoding may add a start token before the prompt and change white space within it.
    """
    start = query.find(prompt)
    if start >= 0:
        return _without_end(query[start + len(prompt) :])
    wanted = "".join(prompt.split())
    places = [place for place, character in enumerate(query) if not character.isspace()]
    start = "".join(query[place] for place in places).find(wanted)
    if start < 0 or not wanted:
        return None
    return _without_end(query[places[start + len(wanted) - 1] + 1 :])


def _without_end(text: str) -> str:
    end = len(text.rstrip())
    while (found := TRAILING.search(text, max(0, end - LONGEST_TOKEN), end)) is not None:
        end = len(text[: found.start()].rstrip())
    return text[:end]
