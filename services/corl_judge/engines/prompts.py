"""From a prompt to token ids and from token ids to text, the same for every engine.

A tokenizer that is used from two threads at once can raise "Already borrowed", so every use is under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corl.wire import ImagePart, Message, Prompt
from corl_judge.engines.base import EngineError, PromptRejected

__all__ = ["PromptEncoder", "eos_token_ids", "load_tokenizer"]


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The Hugging Face tokenizer of a checkpoint folder. Raises EngineError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise EngineError(f"no usable tokenizer in {folder}: {error}; save it there with save_pretrained") from error


def eos_token_ids(config: Any, generation_config: Any, tokenizer: Any) -> tuple[int, ...]:
    """All token ids that end a completion: those of the generation config, the model config and the tokenizer.

    Chat models often end a turn with another token than the tokenizer's own end token, and say so in one place only.
    """
    ids: set[int] = set()
    for owner in (generation_config, config, tokenizer):
        value = getattr(owner, "eos_token_id", None)
        ids.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return tuple(sorted(ids))


class PromptEncoder:
    """Renders and encodes prompts; refuses those that the model cannot run.

    A string is one user message where the tokenizer has a chat template and is encoded as it is where it has none.
    Messages are rendered as they are, or joined by newlines without a template. Token ids are checked and passed on.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self._lock = threading.Lock()

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids, at least one and fewer than `max_model_len`. Raises PromptRejected."""
        if isinstance(prompt, str):
            ids = (
                self._render([Message(role="user", content=prompt)]) if self.has_chat_template else self._plain(prompt)
            )
        elif prompt and isinstance(prompt[0], Message):
            messages = [m for m in prompt if isinstance(m, Message)]
            ids = self._render(messages) if self.has_chat_template else self._plain("\n".join(map(_text, messages)))
        else:
            ids = [token for token in prompt if isinstance(token, int)]
        self._check(ids)
        return ids

    def check_room(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raise PromptRejected unless the prompt and `max_tokens` fit the model together.

        A completion that is cut short by the model's length looks to a trainer like any other truncated one, so a
        request that could end so is refused instead of shortened.
        """
        if prompt_tokens + max_tokens > self.max_model_len:
            raise PromptRejected(
                f"prompt of {prompt_tokens} tokens and max_tokens {max_tokens} exceed the model's length of "
                f"{self.max_model_len}: shorten the prompt, lower max_tokens or raise engine_options.max_model_len"
            )

    def decode(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """The texts of completions, without special tokens."""
        with self._lock:
            return [str(self.tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in completions]

    def _plain(self, text: str) -> list[int]:
        with self._lock:
            return list(self.tokenizer.encode(text))

    def _render(self, messages: Sequence[Message]) -> list[int]:
        chat = [{"role": message.role, "content": _text(message)} for message in messages]
        try:
            with self._lock:
                encoded = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # templates raise what they like, e.g. for roles that they do not know
            raise PromptRejected(f"the chat template refuses the prompt: {error}") from error
        return list(encoded["input_ids"])

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise PromptRejected("prompt is empty: it has no tokens")
        outside = next((i for i, token in enumerate(ids) if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            raise PromptRejected(
                f"prompt token {outside} is {ids[outside]}, outside the vocabulary of {self.vocab_size}: "
                "encode it with this member's own tokenizer"
            )
        if len(ids) >= self.max_model_len:
            raise PromptRejected(
                f"prompt of {len(ids)} tokens leaves no room in the model's length of {self.max_model_len}: "
                "shorten it or raise engine_options.max_model_len"
            )


def _text(message: Message) -> str:
    """A message's text. Parts follow each other with nothing added between them. Raises PromptRejected on an image."""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if isinstance(part, ImagePart):
            raise PromptRejected("prompt holds an image_url part: this engine runs text-only models; send text parts")
    return "".join(part.text for part in message.content if not isinstance(part, ImagePart))
