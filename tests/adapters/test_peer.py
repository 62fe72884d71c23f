"""`PeerReward` against a real judge: grouping, rows without a label, faults, and what is refused before it is sent."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from typing import Any

import pytest
from corl_judge.engines.base import EngineError

from corl.adapters import AsyncPeerReward, PeerReward, RewardFailed, Unlabeled
from corl.client import AsyncJudgeClient, JudgeClient
from corl.errors import JudgeDenied, JudgeUnavailable
from corl.wire import Policy
from tests.adapters.conftest import sums
from tests.judge.harness import Judges
from tests.scripted import ScriptedEngine


def chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


async def test_a_mixed_batch_is_one_request_and_one_vote_a_problem(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    prompts = ["1 + 2", "3 + 4", "1 + 2", "split 5 + 5", "3 + 4", "split 5 + 5"]
    completions = ["\\boxed{3}", "\\boxed{8}", "no idea", "\\boxed{10}", "so \\boxed{7}", "\\boxed{11}"]
    async with AsyncPeerReward(judge.url) as reward:
        scored = await reward.score(prompts, completions)
    assert scored.rewards == [1.0, 0.0, 0.0, None, 1.0, None]
    assert scored.answers == ["3", "8", None, "10", "7", "11"]
    assert [vote.status for vote in scored.votes] == ["ok", "ok", "ok", "tie", "ok", "tie"]
    assert len(judge.engine.calls) == 3
    metrics = (await judge.http.get("/metrics")).text
    assert 'corl_requests_total{method="POST",route="/v1/scores",status="200"} 1.0' in metrics


async def test_threads_and_clients_give_the_same(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums), api_key="sesame")
    rows = (["1 + 2"] * 2, ["\\boxed{3}", "\\boxed{4}"])

    def in_a_thread() -> None:
        with PeerReward(judge.url, api_key="sesame") as reward:
            assert reward(*rows) == [1.0, 0.0]
            assert pickle.loads(pickle.dumps(reward))(*rows) == [1.0, 0.0]  # noqa: S301
        with PeerReward(judge.url.replace("://", "://corl:sesame@")) as reward:
            assert reward(*rows) == [1.0, 0.0]
        with JudgeClient(judge.url, "sesame") as client:
            reward = PeerReward(client)
            assert reward(*rows) == [1.0, 0.0]
            with pytest.raises(TypeError, match="judge's address"):
                pickle.dumps(reward)
        with PeerReward(judge.url, api_key="wrong") as reward, pytest.raises(JudgeDenied):
            reward(*rows)

    await asyncio.to_thread(in_a_thread)
    async with AsyncJudgeClient(judge.url, "sesame") as client:
        assert await AsyncPeerReward(client)(*rows) == [1.0, 0.0]


async def test_the_key_comes_from_the_environment(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = await judges.start(ScriptedEngine(sums), api_key="sesame")
    monkeypatch.setenv("CORL_API_KEY", "sesame")
    async with AsyncPeerReward(judge.url) as reward:
        assert await reward(["1 + 2"], ["\\boxed{3}"]) == [1.0]


async def test_conversations(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    parts = [{"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2"}]}]
    developer = [{"role": "developer", "content": "Add: "}, *chat("3 + 4")]
    tooled = [*said("look it up"), {"role": "tool", "content": "\\boxed{3}"}]
    async with AsyncPeerReward(judge.url) as reward:
        assert await reward(
            [chat("1 + 2"), parts, developer, chat("1 + 2"), chat("1 + 2")],
            [said("\\boxed{3}"), said("\\boxed{4}"), said("\\boxed{7}"), tooled, []],
        ) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert len(judge.engine.calls) == 2


async def test_problem_ids_and_options_tell_rows_apart(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(lambda _p, n, _s: ["The answer is (B)."] * n))
    async with AsyncPeerReward(judge.url, task="choice") as reward:
        assert await reward(
            ["which?"] * 3,
            ["(B)", "the answer is blue", "(A)"],
            problem_id=["p", None, "p"],
            options=[{"A": "red", "B": "blue"}] * 3,
        ) == [1.0, 1.0, 0.0]


async def test_without_a_label_the_row_gets_what_was_chosen(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    rows = (["split 1 + 2"], ["\\boxed{3}"])
    assert await AsyncPeerReward(judge.url)(*rows) == [None]
    assert await AsyncPeerReward(judge.url, on_unlabeled="zero")(*rows) == [0.0]
    with pytest.raises(Unlabeled, match="'tie'"):
        await AsyncPeerReward(judge.url, on_unlabeled="error")(*rows)
    assert await AsyncPeerReward(judge.url, policy=Policy(ties="first"))(*rows) == [1.0]


async def test_one_problem_that_fails_fails_the_batch_and_is_no_zero(judges: Judges) -> None:
    engine = ScriptedEngine(sums, fail=lambda text: EngineError("out of memory") if "9" in text else None)
    judge = await judges.start(engine)
    with pytest.raises(RewardFailed, match=r"1 problems were not judged; 'p9'.*out of memory") as failed:
        await AsyncPeerReward(judge.url)(["1 + 2", "9 + 9"], ["\\boxed{3}", "\\boxed{18}"], problem_id=["p1", "p9"])
    assert list(failed.value.failures) == ["p9"]


async def test_a_judge_that_is_away_is_an_error_at_the_deadline() -> None:
    with pytest.raises(JudgeUnavailable):
        await AsyncPeerReward("http://127.0.0.1:9", deadline_s=0.5)(["1 + 2"], ["\\boxed{3}"])


@pytest.mark.parametrize(
    ("prompts", "completions", "columns", "message"),
    [
        ([""], ["x"], {}, "prompts.0 is empty"),
        ([[]], ["x"], {}, "prompts.0: expected text or a list of chat messages"),
        ([[1, 2]], ["x"], {}, "prompts.0: expected text or a list of chat messages"),
        ([[{"role": "tool", "content": "x"}]], ["x"], {}, "prompts.0.0.role is 'tool'"),
        ([chat("a"), [{"role": "user", "content": [{"type": "image"}]}]], ["x"] * 2, {}, "prompts.1.0.content.0"),
        (["a"], [None], {}, "completions.0: expected text"),
        (["a"], ["x", "y"], {}, "completions has 2 rows, prompts has 1"),
        (["a"], ["x"], {"problem_id": []}, "problem_id has 0 rows"),
    ],
)
async def test_rows_that_are_wrong_are_named(
    prompts: list[Any], completions: list[Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await AsyncPeerReward("http://127.0.0.1:9")(prompts, completions, **columns)


def test_settings_that_are_wrong_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="judge's address"):
        PeerReward("localhost:8000")
    with pytest.raises(ValueError, match="on_unlabeled is 'nan'"):
        PeerReward("http://localhost:8000", on_unlabeled="nan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="deadline_s is 0"):
        PeerReward("http://localhost:8000", deadline_s=0)


def test_an_empty_batch_asks_nobody() -> None:
    assert PeerReward("http://127.0.0.1:9")([], []) == []


def test_importing_the_adapters_imports_no_trainer() -> None:
    code = (
        "import sys, corl.adapters, corl.adapters.trl, corl.adapters.verl, corl.adapters.verifiers, "
        "corl.adapters.skyrl\n"
        "heavy = {'trl', 'verl', 'verifiers', 'skyrl_gym', 'torch', 'transformers', 'fastapi', 'redis'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
