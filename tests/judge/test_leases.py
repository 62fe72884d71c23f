"""`PUT /v1/trainer` and `DELETE /v1/votes`: incarnations, fencing, retention by steps."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.judge.harness import Judges, RunningJudge, item, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def lease(judge: RunningJudge, run: str = "r", expect: int = 200, **more: Any) -> dict[str, Any]:
    return await judge.put("/v1/trainer", {"run": run, "step": 0, "ttl_s": 30.0, **more}, expect=expect)


async def test_each_start_of_a_trainer_has_a_greater_incarnation(judges: Judges) -> None:
    judge = await judges.start()
    assert await lease(judge, step=3) == {"run": "r", "incarnation": 1, "step": 3, "ttl_s": 30.0}
    assert (await lease(judge, incarnation=1))["incarnation"] == 1
    assert (await lease(judge))["incarnation"] == 2
    fenced = await lease(judge, incarnation=1, expect=409)
    assert fenced["type"] == "urn:corl:fenced"
    assert (await lease(judge, incarnation=2))["incarnation"] == 2


async def test_no_incarnation_is_given_twice_under_a_rush(judges: Judges) -> None:
    first = await judges.start()
    second = await judges.start(member=first.settings.member)
    given = await asyncio.gather(*(lease(judge) for judge in (first, second) for _ in range(25)))
    assert sorted(entry["incarnation"] for entry in given) == list(range(1, 51))


async def test_runs_do_not_fence_each_other_but_share_the_numbers(judges: Judges) -> None:
    judge = await judges.start()
    assert (await lease(judge, "r1"))["incarnation"] == 1
    assert (await lease(judge, "r2"))["incarnation"] == 2
    assert (await lease(judge, "r1", incarnation=1))["incarnation"] == 1


async def test_a_lease_lapses_by_its_ttl_and_is_live_again_when_renewed(judges: Judges) -> None:
    judge = await judges.start()
    await lease(judge, ttl_s=0.3)
    assert (await judge.service.leases.seen("r")).live

    async def lapsed() -> bool:
        return not (await judge.service.leases.seen("r")).live

    await until(lapsed)
    await lease(judge, incarnation=1, step=4)
    seen = await judge.service.leases.seen("r")
    assert (seen.live, seen.step, seen.incarnation) == (True, 4, 1)


async def test_wrong_leases_are_refused(judges: Judges) -> None:
    judge = await judges.start()
    changes: list[dict[str, Any]] = [{"ttl_s": 0}, {"ttl_s": 1e9}, {"step": -1}, {"run": "a b"}, {"extra": 1}]
    for change in changes:
        assert (await lease(judge, expect=422, **change))["errors"]


async def voted(judge: RunningJudge, step: int) -> str:
    [scored] = (await judge.post("/v1/scores", scores(item("p1", "\\boxed{4}"), run="r", step=step)))["items"]
    return str(scored["vote"]["source"])


async def test_votes_of_old_steps_are_dropped_as_the_trainer_goes_on(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), keep_steps=5)
    for step in range(3):
        await judge.post("/v1/rollouts", rollouts("p1", run="r", step=step))
    await lease(judge, step=7)  # keeps steps from 2 on
    assert [await voted(judge, step) for step in range(3)] == ["fresh", "fresh", "rollout"]


async def test_a_restarted_cohort_forgets_the_votes_that_it_will_make_again(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    for step in range(4):
        await judge.post("/v1/rollouts", rollouts("p1", run="r", step=step))
    answer = await judge.http.delete("/v1/votes?run=r&after=1")
    assert (answer.status_code, answer.json()) == (200, {"run": "r", "after": 1, "dropped": 2})
    assert [await voted(judge, step) for step in range(4)] == ["rollout", "rollout", "fresh", "fresh"]
    assert (await judge.http.delete("/v1/votes?run=r")).status_code == 422


async def test_a_restarted_trainers_replay_files_its_votes_again(judges: Judges) -> None:
    """The rollouts come from the stored result, since the weights are the same; their votes had been dropped."""
    judge = await judges.start(ScriptedEngine(boxed("4")))
    first = await judge.post("/v1/rollouts", rollouts("p1", run="r", step=2))
    await judge.http.delete("/v1/votes?run=r&after=1")
    assert await judge.post("/v1/rollouts", rollouts("p1", run="r", step=2)) == first
    assert await voted(judge, 2) == "rollout"
    assert len(judge.engine.calls) == 1
