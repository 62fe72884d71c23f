"""Work items and their results: identity, seeds, and a compact binary form.

A work item is one problem to be sampled. Token ids travel as int32, log-probabilities as float32 (what engines give),
both little-endian; everything else as msgpack.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgpack

from corl.wire import Message, Options, Prompt, Sampling, Task, WeightsTag
from corl_judge.engines.base import Sample
from corl_judge.votebook import VoteKey

__all__ = [
    "Purpose",
    "Rollout",
    "SampledItem",
    "WorkItem",
    "pack_floats",
    "pack_ints",
    "seed_of",
    "unpack_floats",
    "unpack_ints",
]

Purpose = Literal["train", "eval", "vote"]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """n completions of one prompt under `wanted`. `vote` names where the answers are filed, if they are.

    `submitted_at` is in seconds since the epoch; `request_id` is the first asker's, for the logs.
    """

    purpose: Purpose
    problem_id: str
    prompt: Prompt
    prompt_token_ids: Sequence[int]
    task: Task
    options: Options | None
    n: int
    sampling: Sampling
    wanted: WeightsTag
    seed: int
    run: str | None = None
    step: int | None = None
    vote: VoteKey | None = None
    submitted_at: float = 0.0
    request_id: str | None = None

    def key(self, member: str, attempt: int = 0) -> str:
        """Equal keys are the same work. `attempt` grows when the stored result is of other weights than were wanted.

        A vote of a step is the same work for all who ask for it, however many samples each would have taken.
        """
        if self.purpose == "vote" and self.vote is not None and isinstance(self.vote.slot, int):
            shared = (self.run, member, self.purpose, self.step, self.problem_id, self.wanted.digest, attempt)
            return hashlib.sha256(msgpack.packb(shared)).hexdigest()
        identity = (
            self.run,
            member,
            self.purpose,
            self.step,
            self.problem_id,
            pack_ints(self.prompt_token_ids),
            self.task,
            list(self.options.items()) if isinstance(self.options, dict) else self.options,
            self.n,
            sorted(self.sampling.model_dump().items()),
            self.wanted.digest,
            attempt,
        )
        return hashlib.sha256(msgpack.packb(identity)).hexdigest()

    def to_bytes(self) -> bytes:
        return cast(
            bytes,
            msgpack.packb(
                {
                    "purpose": self.purpose,
                    "problem_id": self.problem_id,
                    "prompt": _pack_prompt(self.prompt),
                    "ids": pack_ints(self.prompt_token_ids),
                    "task": self.task,
                    "options": self.options,
                    "n": self.n,
                    "sampling": self.sampling.model_dump(),
                    "wanted": _pack_tag(self.wanted),
                    "seed": self.seed,
                    "run": self.run,
                    "step": self.step,
                    "vote": None if self.vote is None else (self.vote.run, self.vote.slot, self.vote.problem),
                    "at": self.submitted_at,
                    "request": self.request_id,
                }
            ),
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> WorkItem:
        raw: dict[str, Any] = msgpack.unpackb(packed)
        ids = unpack_ints(raw["ids"])
        return cls(
            purpose=raw["purpose"],
            problem_id=raw["problem_id"],
            prompt=_unpack_prompt(raw["prompt"], ids),
            prompt_token_ids=ids,
            task=raw["task"],
            options=raw["options"],
            n=raw["n"],
            sampling=Sampling(**raw["sampling"]),
            wanted=_unpack_tag(raw["wanted"]),
            seed=raw["seed"],
            run=raw["run"],
            step=raw["step"],
            vote=None if raw["vote"] is None else VoteKey(*raw["vote"]),
            submitted_at=raw["at"],
            request_id=raw["request"],
        )


@dataclass(frozen=True, slots=True)
class Rollout:
    """A completion and the answer found in it."""

    sample: Sample
    answer: str | None


@dataclass(frozen=True, slots=True)
class SampledItem:
    """What a work item came to. `histogram` is packed; `rollouts` is empty for votes, whose texts nobody asked for."""

    weights: WeightsTag
    histogram: bytes
    rollouts: list[Rollout]

    def to_bytes(self) -> bytes:
        rows = [
            (
                pack_ints(r.sample.token_ids),
                pack_floats(r.sample.logprobs),
                r.sample.text,
                r.sample.finish_reason,
                r.answer,
            )
            for r in self.rollouts
        ]
        return cast(bytes, msgpack.packb((_pack_tag(self.weights), self.histogram, rows)))

    @classmethod
    def from_bytes(cls, packed: bytes) -> SampledItem:
        tag, histogram, rows = msgpack.unpackb(packed)
        rollouts = [
            Rollout(Sample(unpack_ints(ids), unpack_floats(logprobs), text, reason), answer)
            for ids, logprobs, text, reason, answer in rows
        ]
        return cls(_unpack_tag(tag), histogram, rollouts)


def seed_of(cohort_seed: int, member: str, moment: int, problem_id: str, purpose: Purpose) -> int:
    """Members never share randomness, and two runs of the same cohort draw the same. `moment` is a step or a version.

    Below 2**48, since engines add the sample's index to it.
    """
    packed = msgpack.packb((cohort_seed, member, moment, problem_id, purpose))
    return int.from_bytes(hashlib.sha256(packed).digest()[:6], "little")


def pack_ints(values: Sequence[int]) -> bytes:
    return _little(array("i", values)).tobytes()


def unpack_ints(packed: bytes) -> list[int]:
    return _little(array("i", packed)).tolist()


def pack_floats(values: Sequence[float]) -> bytes:
    return _little(array("f", values)).tobytes()


def unpack_floats(packed: bytes) -> list[float]:
    return _little(array("f", packed)).tolist()


def _little(values: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _pack_tag(tag: WeightsTag) -> tuple[int, int, str]:
    return tag.incarnation, tag.version, tag.digest


def _unpack_tag(packed: Sequence[Any]) -> WeightsTag:
    return WeightsTag(incarnation=packed[0], version=packed[1], digest=packed[2])


def _pack_prompt(prompt: Prompt) -> str | list[dict[str, Any]] | None:
    """None for token ids, which the item has anyway."""
    if isinstance(prompt, str):
        return prompt
    messages = [part.model_dump() for part in prompt if isinstance(part, Message)]
    return messages or None


def _unpack_prompt(packed: str | list[dict[str, Any]] | None, ids: list[int]) -> Prompt:
    if packed is None:
        return ids
    return packed if isinstance(packed, str) else [Message(**message) for message in packed]
