"""The TRL reward functions, called as `GRPOTrainer` calls them."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

from corl.adapters.trl import AsyncPeerReward, PeerReward
from tests.adapters.conftest import sums
from tests.judge.harness import Judges
from tests.scripted import ScriptedEngine


def call(logged: dict[str, float], **columns: Any) -> dict[str, Any]:
    """What TRL passes: rows, the dataset's columns, its own state and its loggers."""
    return {
        "prompts": ["1 + 2", "1 + 2", "split 3 + 4", "split 3 + 4"],
        "completions": ["\\boxed{3}", "\\boxed{4}", "\\boxed{7}", "\\boxed{8}"],
        "completion_ids": [[1], [2], [3], [4]],
        "trainer_state": SimpleNamespace(global_step=7),
        "log_extra": lambda name, values: None,
        "log_metric": lambda name, value: logged.__setitem__(name, value),
        **columns,
    }


async def test_sync_and_async_give_none_for_what_has_no_label_and_log_the_rest(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    logged: dict[str, float] = {}
    reward = PeerReward(judge.url)
    assert await asyncio.to_thread(lambda: reward(**call(logged))) == [1.0, 0.0, None, None]
    assert logged == {"peer_reward/labeled": 0.5, "peer_reward/vote_share": 0.625}

    logged.clear()
    awaited = AsyncPeerReward(judge.url, name="b")
    assert await awaited(**call(logged, answer=["3", "3", "7", "7"])) == [1.0, 0.0, None, None]
    assert set(logged) == {"b/labeled", "b/vote_share"}
    assert len(judge.engine.calls) == 2


async def test_in_a_run_problem_id_and_step_name_the_vote(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    reward = AsyncPeerReward(judge.url, run="r")
    given = call({}, problem_id=["p", "p", "q", "q"])
    assert await reward(**given) == [1.0, 0.0, None, None]
    keys = [key.decode() for key in await judge.service.redis.keys(f"corl:{judge.settings.member}:vote:r:7:*")]
    assert len(keys) == 2


async def test_trl_sees_what_it_needs_to_see() -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable

    sync, later = PeerReward("http://127.0.0.1:9", name="a"), AsyncPeerReward("http://127.0.0.1:9", name="b")
    assert not is_async_callable(sync)
    assert is_async_callable(later)
    assert [get_callable_name(sync), get_callable_name(later)] == ["a", "b"]
    assert pickle.loads(pickle.dumps(later)).__name__ == "b"  # noqa: S301
