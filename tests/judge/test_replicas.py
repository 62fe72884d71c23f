"""Several processes of one member: any answers any request, none loses work, all load before they take it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from corl.client import AsyncJudgeClient
from corl.wire import RolloutsRequest, WeightsUpdate
from tests.judge.harness import JudgeProcess, Judges, item, publish, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def test_work_goes_to_whichever_replica_is_free(judges: Judges) -> None:
    first = await judges.start(max_problems_in_flight=2)
    second = await judges.start(member=first.settings.member, max_problems_in_flight=2)
    for judge in (first, second):
        judge.engine.gate.clear()
    asked = asyncio.create_task(first.post("/v1/rollouts", rollouts(*(f"p{i}" for i in range(4)), run="r", step=0)))
    await until(lambda: first.engine.running == 2 and second.engine.running == 2)
    for judge in (first, second):
        judge.engine.gate.set()
    assert len((await asked)["problems"]) == 4


async def test_any_replica_answers_for_what_another_did(judges: Judges) -> None:
    first = await judges.start(ScriptedEngine(boxed("4")))
    second = await judges.start(ScriptedEngine(boxed("9")), member=first.settings.member)
    second.engine.gate.clear()
    body = rollouts("p1", run="r", step=0)
    second.hold()
    answer = await first.post("/v1/rollouts", body)
    assert await second.post("/v1/rollouts", body) == answer
    [scored] = (await second.post("/v1/scores", scores(item("p1", "\\boxed{4}"), run="r", step=0)))["items"]
    assert scored["rewards"] == [1.0]
    assert second.engine.calls == []


async def test_a_vote_is_sampled_once_though_askers_ask_different_replicas(judges: Judges) -> None:
    first = await judges.start(ScriptedEngine(boxed("4")))
    second = await judges.start(ScriptedEngine(boxed("4")), member=first.settings.member)
    for judge in (first, second):
        judge.engine.gate.clear()
    body = scores(item("p1", "\\boxed{4}"))
    asked = [asyncio.create_task(j.post("/v1/scores", body)) for j in (first, second) for _ in range(4)]
    await until(lambda: first.service.open["scores"].count == second.service.open["scores"].count == 4)
    for judge in (first, second):
        judge.engine.gate.set()
    await asyncio.gather(*asked)
    assert len(first.engine.calls) + len(second.engine.calls) == 1


async def test_every_replica_loads_and_the_answer_waits_for_all(judges: Judges, tmp_path: Path) -> None:
    first = await judges.start(weights=tmp_path)
    second = await judges.start(member=first.settings.member, weights=tmp_path)
    second.engine.load_gate.clear()
    await first.put("/v1/weights", publish(tmp_path, first.settings.member, 1), expect=202)

    async def one_is_behind() -> bool:
        early = await first.get("/v1/weights?version=1&wait_s=0.1")
        return {r["state"] for r in early["replicas"]} == {"ready", "loading"}

    await until(one_is_behind)
    second.engine.load_gate.set()
    status = await first.get("/v1/weights?version=1&wait_s=30")
    assert [r["loaded"]["version"] for r in status["replicas"]] == [1, 1]
    assert status["replicas"][0]["id"] != status["replicas"][1]["id"]


async def test_weights_never_go_backwards_for_a_client_of_several_replicas(judges: Judges, tmp_path: Path) -> None:
    """One replica is slow to load: no answer of it shows older weights than another's answer before."""
    first = await judges.start(weights=tmp_path)
    second = await judges.start(member=first.settings.member, weights=tmp_path)
    second.engine.load_gate.clear()
    await first.put("/v1/weights", publish(tmp_path, first.settings.member, 1), expect=202)
    await until(lambda: first.engine.loads)
    await until(lambda: second.service.replica.state == "loading")
    assert (await first.post("/v1/rollouts", rollouts("p1", run="r", step=1)))["weights"]["version"] == 1
    assert (await second.post("/v1/rollouts", rollouts("p2", run="r", step=1)))["weights"]["version"] == 1
    assert (await second.post("/v1/scores", scores(item("p1", "4"), run="r", step=1)))["weights"]["version"] == 1
    assert (await second.get("/v1/model"))["weights"]["version"] == 1


async def test_a_replica_that_has_not_heard_of_new_weights_does_not_do_their_work_with_old_ones(
    judges: Judges, tmp_path: Path
) -> None:
    first = await judges.start(weights=tmp_path)
    deaf = await judges.start(member=first.settings.member, weights=tmp_path, poll_s=3600)
    first.engine.load_gate.clear()
    await first.put("/v1/weights", publish(tmp_path, first.settings.member, 1), expect=202)
    await until(lambda: first.service.replica.state == "loading")
    answer = await first.post("/v1/rollouts", rollouts("p1", run="r", step=1))
    assert answer["weights"]["version"] == 1
    assert [tag.version for tag in deaf.engine.loads] == [1]


async def test_a_replica_that_ends_is_no_longer_listed(judges: Judges) -> None:
    first = await judges.start()
    second = await judges.start(member=first.settings.member)

    async def listed() -> int:
        return len((await first.get("/v1/weights"))["replicas"])

    await until(lambda: _is(listed, 2))
    await second.stop()
    assert await listed() == 1


async def _is(count: object, wanted: int) -> bool:
    return bool(await count() == wanted)  # type: ignore[operator]


async def test_scaling_up_and_down_under_load_loses_nothing(judges: Judges) -> None:
    first = await judges.start(ScriptedEngine(boxed("4"), delay_s=0.02), max_problems_in_flight=2)
    more = []

    async def ask(step: int) -> None:
        answer = await first.post("/v1/rollouts", rollouts("p1", "p2", "p3", run="r", step=step))
        assert [p["vote"]["answer"] for p in answer["problems"]] == ["4", "4", "4"]

    async def scale() -> None:
        for _ in range(3):
            engine = ScriptedEngine(boxed("4"), delay_s=0.02)
            more.append(await judges.start(engine, member=first.settings.member, max_problems_in_flight=2))
        for judge in more:
            await judge.stop()

    await asyncio.gather(scale(), *(ask(step) for step in range(60)))
    assert sum(judge.engine.generated for judge in [first, *more]) == 60 * 3 * 4
    assert any(judge.engine.generated for judge in more)


async def test_a_replica_killed_mid_generation_costs_its_callers_only_time(
    judges: Judges, redis_url: str, tmp_path: Path
) -> None:
    first = await judges.start(ScriptedEngine(boxed("4")))
    first.hold()  # so that the other takes the work
    other = await JudgeProcess.start(tmp_path, redis_url, answers=["4"], delay_s=60, member=first.settings.member)
    try:
        await other.ready()
        asked = asyncio.create_task(first.post("/v1/rollouts", rollouts("p1", "p2", run="r", step=0)))

        async def taken() -> bool:
            return (await first.service.queues["rollouts"].depth()).pending == 2

        await until(taken)
        other.send(signal.SIGKILL)
        await other.ended()
        first.release()
        answer = await asked
        assert [p["vote"]["answer"] for p in answer["problems"]] == ["4", "4"]
        assert first.engine.generated == 8
    finally:
        await other.kill()


async def test_a_client_follows_a_judge_through_a_restart(redis_url: str, tmp_path: Path) -> None:
    """kill -9, the same address again: the client sees latency, and the published weights are loaded first."""
    member = f"k{tmp_path.name[-8:].strip('-_').lower()}x"
    weights = tmp_path / "weights"
    settings: dict[str, Any] = {"member": member, "weights": weights}
    first = await JudgeProcess.start(tmp_path, redis_url, answers=["4"], name="first", **settings)
    second: JudgeProcess | None = None
    try:
        await first.ready()
        port = int(first.url.rpartition(":")[2])
        async with AsyncJudgeClient(first.url) as client:
            update = WeightsUpdate.model_validate(publish(weights, member, 1))
            await client.put_weights(update, deadline_s=30)
            await client.weights(version=1, wait_s=30, deadline_s=60)
            first.send(signal.SIGKILL)
            await first.ended()
            request = RolloutsRequest.model_validate(rollouts("p1", run="r", step=1, min_version=1, incarnation=1))
            asked = asyncio.create_task(client.rollouts(request, deadline_s=90))
            second = await JudgeProcess.start(
                tmp_path, redis_url, answers=["4"], name="second", **{**settings, "port": port}
            )
            answer = await asked
        assert (answer.weights.version, answer.weights.digest) == (1, update.digest)
    finally:
        await first.kill()
        if second is not None:
            await second.kill()
