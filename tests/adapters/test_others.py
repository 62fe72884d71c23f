"""The helpers for verifiers and SkyRL-gym, called as those call them."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from corl.adapters import Unlabeled
from corl.adapters.skyrl import PeerStep
from corl.adapters.verifiers import group_reward
from tests.adapters.conftest import sums
from tests.judge.harness import Judges
from tests.scripted import ScriptedEngine

CHAT = [{"role": "user", "content": "1 + 2"}]


async def test_a_rubric_sees_a_group_function_of_plural_names(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    reward = group_reward(judge.url)
    assert list(inspect.signature(reward).parameters) == ["prompts", "completions", "infos"]
    said = [[{"role": "assistant", "content": text}] for text in ("\\boxed{3}", "\\boxed{4}")]
    assert await reward(prompts=[CHAT, CHAT], completions=said, infos=[{"problem_id": "p"}, {"problem_id": "p"}]) == [
        1.0,
        0.0,
    ]
    assert await reward(prompts=["split 1"], completions=["\\boxed{1}"]) == [0.0]
    with pytest.raises(ValueError, match="use zero or error"):
        group_reward(judge.url, on_unlabeled="none")


async def test_a_step_ends_the_episode(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    step = PeerStep(judge.url, CHAT)
    for _ in range(2):
        assert await asyncio.to_thread(step, "It is \\boxed{3}.") == {
            "observations": [],
            "reward": 1.0,
            "done": True,
            "metadata": {"labeled": 1.0, "vote_share": 0.75},
        }
    with pytest.raises(Unlabeled):
        await asyncio.to_thread(PeerStep(judge.url, "split 1", on_unlabeled="error"), "\\boxed{1}")
    assert (await asyncio.to_thread(PeerStep(judge.url, "split 1"), "\\boxed{1}"))["metadata"]["labeled"] == 0.0
