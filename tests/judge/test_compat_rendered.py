"""Problems out of rendered prompts, and completions out of what was decoded with their prompt."""

from __future__ import annotations

import time

import pytest
from corl_judge.compat.rendered import compiled, completion_of, looks_rendered, problem_of

LLAMA3 = "<|begin_of_text|>" + "".join(
    f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"
    for role, text in [("system", "Be brief."), ("user", "1 + 2\n= ?")]
)


@pytest.mark.parametrize(
    ("template", "prompt", "problem"),
    [
        ("llama3", LLAMA3, [("system", "Be brief."), ("user", "1 + 2\n= ?")]),
        ("gemma", "<bos><start_of_turn>user\na\nb<end_of_turn>\n<start_of_turn>model\n", [("user", "a\nb")]),
        (
            "gemma",
            "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
            "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
            [("user", "a"), ("assistant", "b"), ("user", "c")],
        ),
        ("mistral", "<s>[INST] 1 + 2 [/INST]", "1 + 2"),
        ("deepseek", "<｜begin▁of▁sentence｜><｜User｜>1 + 2<｜Assistant｜><think>\n", "1 + 2"),
        (r"Q: (?P<prompt>.*)\nA:", "Q: a\nb\nA:", "a\nb"),
        ("chatml", "1 + 2", None),
        (r"(?P<role>\w+)> (?P<content>\w+)", "tool> x", None),
    ],
)
def test_templates(template: str, prompt: str, problem: object) -> None:
    found = problem_of(prompt, compiled(template))
    assert (found if found is None or isinstance(found, str) else [(m.role, m.content) for m in found]) == problem


@pytest.mark.parametrize(
    ("template", "said"),
    [("qwen", "neither one of chatml"), ("(?P<content>x)", "none for the role"), ("(?P<prompt>", "no regular")],
)
def test_templates_that_are_none(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compiled(template)


@pytest.mark.parametrize(
    ("query", "prompt", "completion"),
    [
        ("P R", "P", " R"),
        ("<s> P R</s>", "P", " R"),
        ("P R<|im_end|>\n<|endoftext|><|endoftext|>", "P", " R"),
        ("<s> a  b\nc R", "a b c", " R"),
        ("x < y is <b> R <b>", "x < y is", " <b> R <b>"),
        ("P", "P", ""),
        ("Q", "P", None),
        ("R", " ", None),
    ],
)
def test_completions(query: str, prompt: str, completion: str | None) -> None:
    assert completion_of(query, prompt) == completion


def test_hostile_texts_do_not_hang() -> None:
    started = time.monotonic()
    for text in ("<|" * 200_000, " " * 400_000, "<|a|>" * 40_000, "<|im_start|>user\n" * 20_000):
        completion_of("P" + text, "P")
        completion_of(text, "P" + text)
        looks_rendered(text)
        problem_of(text, compiled("mistral"))
    assert time.monotonic() - started < 60  # a guard against hangs, not a figure
