"""Prompts and texts by a tokenizer, beyond what the contract tests ask of every engine."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from corl_judge.engines.base import EngineError, PromptRejected
from corl_judge.engines.prompts import PromptEncoder, eos_token_ids, load_tokenizer

from corl.prompts import PromptFormat
from corl.wire import Message


@pytest.fixture
def qwen(qwen_checkpoint: Path) -> PromptEncoder:
    return PromptEncoder(load_tokenizer(qwen_checkpoint), vocab_size=320, max_model_len=64)


def test_a_string_is_what_the_trainer_renders(qwen: PromptEncoder) -> None:
    wanted = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert qwen.tokenizer.decode(qwen.encode("2+2?")) == wanted
    assert qwen.tokenizer.decode(qwen.encode(PromptFormat().messages("2+2?"))) == wanted


def test_turns_are_rendered_in_order(qwen: PromptEncoder) -> None:
    turns = [Message(role=role, content=text) for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    text = qwen.tokenizer.decode(qwen.encode(turns))
    assert text.index("user\na") < text.index("assistant\nb") < text.index("user\nc")


def test_a_prompt_must_leave_room_for_a_token(qwen: PromptEncoder) -> None:
    assert len(qwen.encode([1] * 63)) == 63
    with pytest.raises(PromptRejected, match="prompt of 64 tokens leaves no room in the model's length of 64"):
        qwen.encode([1] * 64)
    qwen.check_room(60, 4)
    with pytest.raises(PromptRejected, match="prompt of 60 tokens and max_tokens 5 exceed"):
        qwen.check_room(60, 5)


def test_special_tokens_are_no_text_and_ids_beyond_the_tokenizer_do_no_harm(qwen: PromptEncoder) -> None:
    end = qwen.tokenizer.eos_token_id
    (ids,) = [qwen.tokenizer.encode("42")]
    assert qwen.decode([[*ids, end], [319, *ids]]) == ["42", "42"]  # Qwen pads its vocabulary beyond the tokenizer


def test_threads_may_encode_and_decode_at_once(qwen: PromptEncoder) -> None:
    wanted = qwen.encode("the answer")
    failures: list[object] = []

    def work() -> None:
        for _ in range(200):
            if qwen.encode("the answer") != wanted or not qwen.decode([wanted])[0].startswith("user"):
                failures.append(threading.current_thread())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_end_tokens_come_from_everywhere() -> None:
    config, generation = SimpleNamespace(eos_token_id=7), SimpleNamespace(eos_token_id=[9, 7])
    assert eos_token_ids(config, generation, SimpleNamespace(eos_token_id=3)) == (3, 7, 9)
    assert eos_token_ids(SimpleNamespace(), None, SimpleNamespace(eos_token_id=None)) == ()


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
