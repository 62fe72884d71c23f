"""As a trainer of another project would use a judge: no run, no trainer, votes sampled on demand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corl.client import AsyncJudgeClient, JudgeClient
from corl.errors import JudgeConflict, JudgeDenied, JudgeRefused
from corl.wire import JobRequest, Policy, RolloutsRequest, ScoreItem, ScoresRequest, TrainerUpdate, WeightsUpdate
from tests.judge.harness import Judges, publish, rollouts
from tests.scripted import ScriptedEngine


def arithmetic(prompt: str, n: int, seed: int) -> list[str]:
    """Right three times of four."""
    left, right = (int(word) for word in prompt.split() if word.isdigit())
    return [f"The answer is \\boxed{{{left + right + (1 if i % 4 == 3 else 0)}}}." for i in range(n)]


def asked(*problems: tuple[int, int]) -> ScoresRequest:
    items = [
        ScoreItem(
            id=f"row-{left}-{right}",
            problem_id=f"{left}+{right}",
            prompt=f"What is {left} + {right} ?",
            completions=[f"\\boxed{{{left + right}}}", f"\\boxed{{{left + right + 1}}}", "I give up"],
        )
        for left, right in problems
    ]
    return ScoresRequest(items=items, policy=Policy(samples=8))


async def test_scores_against_a_running_judge_with_nothing_else(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(arithmetic), api_key="sesame")

    def train() -> None:
        with JudgeClient(judge.url, api_key="sesame") as client:
            client.wait_ready(deadline_s=30)
            first = client.scores(asked((1, 2), (3, 4)), deadline_s=60)
            for item in first.items:
                assert item.status == "scored"
                assert item.rewards == [1.0, 0.0, 0.0]
                assert item.vote is not None
                assert (item.vote.source, item.vote.count, item.vote.total) == ("fresh", 6, 8)
            again = client.scores(asked((3, 4), (5, 6)), deadline_s=60)
            assert again.items[0].vote == first.items[1].vote

    await asyncio.to_thread(train)
    assert judge.engine.generated == 3 * 8  # one vote a problem, whoever asks and how often


async def test_several_trainers_at_once_share_the_votes(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(arithmetic, delay_s=0.05))

    async def trainer() -> list[list[float] | None]:
        async with AsyncJudgeClient(judge.url) as client:
            answer = await client.scores(asked(*((i, i + 1) for i in range(10))), deadline_s=60)
            return [item.rewards for item in answer.items]

    rewards = await asyncio.gather(*(trainer() for _ in range(5)))
    assert rewards == [[[1.0, 0.0, 0.0]] * 10] * 5
    assert judge.engine.generated == 10 * 8


async def test_every_call_of_the_client_works_against_a_judge(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    async with AsyncJudgeClient(judge.url) as client:
        assert (await client.model(deadline_s=30)).member == judge.settings.member
        lease = await client.put_trainer(TrainerUpdate(run="r", step=0, ttl_s=30), deadline_s=30)
        update = WeightsUpdate.model_validate(
            publish(tmp_path, judge.settings.member, 1, incarnation=lease.incarnation)
        )
        await client.put_weights(update, deadline_s=30)
        status = await client.weights(version=1, wait_s=30, deadline_s=60)
        assert status.replicas[0].loaded == status.desired
        body = rollouts("p1", "p2", run="r", step=1, min_version=1, incarnation=lease.incarnation)
        request = RolloutsRequest.model_validate(body)
        direct = await client.rollouts(request, deadline_s=60)
        job = await client.submit(JobRequest(kind="rollouts", request=request), "key", deadline_s=30)
        assert await client.result(job.id, deadline_s=60) == direct
        old = TrainerUpdate(run="r", step=0, ttl_s=30, incarnation=lease.incarnation)
        await client.put_trainer(TrainerUpdate(run="r", step=0, ttl_s=30), deadline_s=30)
        with pytest.raises(JudgeConflict, match="replaced by 2"):
            await client.put_trainer(old, deadline_s=30)
        too_many = RolloutsRequest.model_validate(rollouts("p1", n=10_000))
        with pytest.raises(JudgeRefused, match="at most 256"):
            await client.rollouts(too_many, deadline_s=30)


async def test_a_wrong_key_is_denied_at_once(judges: Judges) -> None:
    judge = await judges.start(api_key="sesame")
    async with AsyncJudgeClient(judge.url, api_key="wrong") as client:
        with pytest.raises(JudgeDenied):
            await client.scores(asked((1, 2)), deadline_s=30)
