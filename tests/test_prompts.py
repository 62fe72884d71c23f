"""Prompt formats: what a member is asked, as chat messages and as text."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from corl.prompts import PromptFormat

SUM = {"problem": "1+2?", "completion": "The answer is 3."}
PRODUCT = {"problem": "2*2?", "completion": "The answer is 4."}


def turns(form: PromptFormat) -> list[tuple[str, object]]:
    return [(message.role, message.content) for message in form.messages("5+5?")]


def test_examples_are_turns_before_the_problem_and_after_the_system_message() -> None:
    form = PromptFormat(system="Add.", template="Q: {problem}", examples=[SUM, PRODUCT])
    assert turns(form) == [
        ("system", "Add."),
        ("user", "Q: 1+2?"),
        ("assistant", "The answer is 3."),
        ("user", "Q: 2*2?"),
        ("assistant", "The answer is 4."),
        ("user", "Q: 5+5?"),
    ]


def test_without_examples_the_problem_is_the_only_turn() -> None:
    assert turns(PromptFormat()) == [("user", "5+5?")]
    assert PromptFormat().text("5+5?") == "5+5?"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Q: {problem}\nA:", "Q: 1+2?\nA: The answer is 3.\n\nQ: 5+5?\nA:"),
        ("{problem}\n", "1+2?\nThe answer is 3.\n\n5+5?\n"),
    ],
)
def test_without_a_chat_template_examples_are_text(template: str, text: str) -> None:
    assert PromptFormat(template=template, examples=[SUM]).text("5+5?") == text


@pytest.mark.parametrize("example", [{"problem": "1+2?"}, {**SUM, "completion": ""}, {**SUM, "answer": "3"}])
def test_an_example_is_a_problem_and_a_completion(example: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"examples\.0\.(completion|answer)"):
        PromptFormat(examples=[example])
