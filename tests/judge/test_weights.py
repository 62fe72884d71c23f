"""Reloads: checks before the 202, digests after, fencing, relabelling, superseding, late starters, deadlines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from corl_judge.engines.base import EngineError

from tests.judge.harness import Judges, RunningJudge, corrupt, item, publish, rollouts, scores, tag_of, until
from tests.scripted import ScriptedEngine, boxed


async def put(judge: RunningJudge, update: dict[str, Any], expect: int = 202) -> dict[str, Any]:
    return await judge.put("/v1/weights", update, expect=expect)


async def loaded(judge: RunningJudge, version: int) -> dict[str, Any]:
    status = await judge.get(f"/v1/weights?version={version}&wait_s=30")
    assert status["replicas"][0]["loaded"]["version"] >= version, status
    return status


async def test_published_weights_are_loaded_and_every_answer_says_so(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    assert (await judge.get("/v1/weights"))["desired"] is None
    update = publish(tmp_path, judge.settings.member, 1)
    accepted = await put(judge, update)
    assert accepted["desired"] == tag_of(update).model_dump()
    status = await loaded(judge, 1)
    [replica] = status["replicas"]
    assert (replica["state"], replica["loaded"], replica["reload_error"]) == ("ready", status["desired"], None)
    assert judge.engine.loads == [tag_of(update)]
    assert judge.engine.probes == 1  # one token before it serves
    assert (await judge.get("/v1/model"))["weights"] == status["desired"]
    assert (await judge.post("/v1/rollouts", rollouts("p1", run="r", step=1)))["weights"] == status["desired"]
    assert (await judge.post("/v1/scores", scores(item("p1", "4"))))["weights"] == status["desired"]


async def test_the_same_announcement_again_changes_nothing(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    update = publish(tmp_path, judge.settings.member, 1)
    await put(judge, update)
    await loaded(judge, 1)
    await put(judge, update)
    await loaded(judge, 1)
    assert len(judge.engine.loads) == 1


async def test_equal_digests_are_relabelled_and_not_loaded(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    await put(judge, publish(tmp_path, judge.settings.member, 1, value=7.0))
    await loaded(judge, 1)
    await put(judge, publish(tmp_path, judge.settings.member, 2, value=7.0))
    await loaded(judge, 2)
    assert len(judge.engine.loads) == 1
    assert judge.engine.version.version == 2


async def test_no_completion_mixes_versions_and_nothing_is_taken_while_draining(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    judge.engine.gate.clear()
    old = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: judge.engine.running == 1)
    await put(judge, publish(tmp_path, judge.settings.member, 1))
    await until(lambda: judge.service.replica.state == "draining_for_reload")
    new = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p2", run="r", step=1)))
    await until(lambda: judge.service.open["rollouts"].count == 2)
    assert judge.engine.running == 1
    assert (await judge.http.get("/livez")).status_code == 200
    judge.engine.gate.set()
    assert (await old)["weights"]["version"] == 0
    assert (await new)["weights"]["version"] == 1
    assert judge.engine.most_running == 1  # the engine itself refuses a load with anything running


async def test_reloads_under_load_lose_nothing_and_keep_versions_apart(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(delay_s=0.01), weights=tmp_path, max_problems_in_flight=8)
    served: list[tuple[int, int]] = []

    async def ask(step: int) -> None:
        answer = await judge.post("/v1/rollouts", rollouts(*(f"p{i}" for i in range(6)), run="r", step=step))
        for problem in answer["problems"]:
            served.append((step, problem["weights"]["version"]))
        assert answer["weights"]["version"] == min(p["weights"]["version"] for p in answer["problems"])

    async def reload() -> None:
        for version in range(1, 6):
            await put(judge, publish(tmp_path, judge.settings.member, version))
            await loaded(judge, version)

    await asyncio.gather(reload(), *(ask(step) for step in range(40)))
    assert len(served) == 240
    assert judge.engine.loads[-1].version == 5
    final = await judge.post("/v1/rollouts", rollouts("last", run="r", step=99, min_version=5))
    assert final["weights"]["version"] == 5


async def test_a_second_version_while_one_loads_supersedes_it(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    judge.engine.gate.clear()
    running = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: judge.engine.running == 1)
    for version in (1, 2, 3):
        await put(judge, publish(tmp_path, judge.settings.member, version))
    await until(lambda: judge.service.replica.state == "draining_for_reload")
    judge.engine.gate.set()
    await running
    await loaded(judge, 3)
    assert [tag.version for tag in judge.engine.loads][-1] == 3
    assert 2 not in [tag.version for tag in judge.engine.loads]


async def test_a_version_that_comes_while_one_is_being_loaded_follows_it(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    judge.engine.load_gate.clear()
    await put(judge, publish(tmp_path, judge.settings.member, 1))
    await until(lambda: judge.service.replica.state == "loading")
    await put(judge, publish(tmp_path, judge.settings.member, 2))
    judge.engine.load_gate.set()
    await loaded(judge, 2)
    assert [tag.version for tag in judge.engine.loads] == [1, 2]


# Refused before the 202 ----------------------------------------------------------------------------------------------


async def refused(judge: RunningJudge, update: dict[str, Any], status: int, words: str) -> None:
    before = (await judge.get("/v1/weights"))["desired"]
    answer = await judge.http.put("/v1/weights", json=update)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert (await judge.get("/v1/weights"))["desired"] == before


async def test_only_a_snapshot_inside_the_weights_folder_is_read(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    update = publish(tmp_path, judge.settings.member, 1)
    for uri, words in (
        ("../../etc", "outside"),
        ("/etc", "outside"),
        ("nothing", "no manifest.json"),
        ("a\x00b", "NUL"),
        (".", "outside"),
    ):
        await refused(judge, {**update, "uri": uri}, 422, words)


async def test_a_link_out_of_the_weights_folder_is_not_followed(judges: Judges, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    judge = await judges.start(weights=inside)
    update = publish(outside, judge.settings.member, 1)
    (inside / "link").symlink_to(outside / update["uri"])
    await refused(judge, {**update, "uri": "link"}, 422, "outside")


async def test_the_announcement_must_say_what_the_manifest_says(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    update = publish(tmp_path, judge.settings.member, 1)
    for field, other in {"version": 2, "incarnation": 2, "digest": "0" * 64, "run": "other"}.items():
        await refused(judge, {**update, field: other}, 422, field)


async def test_another_members_snapshot_is_refused(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    await refused(judge, publish(tmp_path, "somebody", 1), 422, "member")


async def test_files_that_do_not_fit_the_manifest_are_refused(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    update = publish(tmp_path, judge.settings.member, 1)
    path = tmp_path / update["uri"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    await refused(judge, update, 422, "bytes")
    manifest = tmp_path / update["uri"] / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "kind": "pickle"}))
    await refused(judge, update, 422, "kind")


async def test_tensors_that_are_not_the_models_are_refused(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(
        ScriptedEngine(misfit="tensor 'w' has shape [2, 3], the model's is [4, 3]"), weights=tmp_path
    )
    await refused(judge, publish(tmp_path, judge.settings.member, 1), 422, "shape")


async def test_a_judge_without_a_weights_folder_says_how_to_give_it_one(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start()
    await refused(judge, publish(tmp_path, judge.settings.member, 1), 422, "--weights")


async def test_versions_and_incarnations_only_grow(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    member = judge.settings.member
    await put(judge, publish(tmp_path, member, 5, incarnation=2))
    await refused(judge, publish(tmp_path, member, 4, incarnation=2), 409, "older than 5")
    await refused(judge, publish(tmp_path, member, 9, incarnation=1), 409, "replaced by 2")
    (tmp_path / "again").mkdir()
    twice = publish(tmp_path / "again", member, 5, incarnation=2, value=1.5)
    await refused(judge, {**twice, "uri": f"again/{twice['uri']}"}, 409, "another digest")
    await put(judge, publish(tmp_path, member, 1, incarnation=3))  # a new trainer may start anywhere
    await loaded(judge, 1)
    assert judge.engine.version.incarnation == 3
    await refused(judge, publish(tmp_path, member, 6, incarnation=2), 409, "replaced by 3")


async def test_a_trainer_that_was_replaced_cannot_publish_even_before_its_successor_does(
    judges: Judges, tmp_path: Path
) -> None:
    judge = await judges.start(weights=tmp_path)
    for expected in (1, 2):
        lease = await judge.put("/v1/trainer", {"run": "r", "step": 0, "ttl_s": 30})
        assert lease["incarnation"] == expected
    await refused(judge, publish(tmp_path, judge.settings.member, 1, incarnation=1), 409, "replaced by 2")
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p1", run="r", step=0, incarnation=1))
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:corl:fenced"
    await judge.put("/v1/trainer", {"run": "r", "step": 1, "ttl_s": 30, "incarnation": 1}, expect=409)
    await judge.put("/v1/trainer", {"run": "r", "step": 1, "ttl_s": 30, "incarnation": 2})


# Failed after the 202 ------------------------------------------------------------------------------------------------


async def test_a_flipped_bit_fails_the_reload_and_desired_falls_back(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), weights=tmp_path)
    member = judge.settings.member
    good = publish(tmp_path, member, 1)
    await put(judge, good)
    await loaded(judge, 1)
    bad = publish(tmp_path, member, 2)
    corrupt(tmp_path, bad)
    await put(judge, bad)
    status = await judge.get("/v1/weights?version=2&wait_s=30")
    [replica] = status["replicas"]
    assert replica["state"] == "failed"
    assert "digest" in replica["reload_error"]
    assert status["desired"] == replica["loaded"] == tag_of(good).model_dump()
    assert (await judge.http.get("/readyz")).status_code == 200  # the old weights serve on
    assert (await judge.post("/v1/rollouts", rollouts("p1", run="r", step=2)))["weights"]["version"] == 1
    await put(judge, publish(tmp_path, member, 3))
    status = await loaded(judge, 3)
    assert (status["replicas"][0]["state"], status["replicas"][0]["reload_error"]) == ("ready", None)


async def test_the_first_published_weights_may_fail_too(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    bad = publish(tmp_path, judge.settings.member, 1)
    corrupt(tmp_path, bad)
    await put(judge, bad)
    status = await judge.get("/v1/weights?version=1&wait_s=30")
    assert status["desired"] is None
    assert status["replicas"][0]["state"] == "failed"
    assert (await judge.post("/v1/rollouts", rollouts("p1")))["weights"]["version"] == 0


async def test_work_that_waited_for_weights_that_failed_is_done_with_those_that_serve(
    judges: Judges, tmp_path: Path
) -> None:
    judge = await judges.start(weights=tmp_path)
    judge.engine.load_gate.clear()
    judge.engine.reject_weights = "no"
    await put(judge, publish(tmp_path, judge.settings.member, 1))
    await until(lambda: judge.service.replica.state == "loading")
    asked = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: judge.service.open["rollouts"].count == 1)
    judge.engine.load_gate.set()
    assert (await asked)["weights"]["version"] == 0


async def test_an_engine_in_doubt_after_a_load_is_a_dead_process(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)

    async def broken() -> None:
        raise EngineError("garbage")

    judge.engine.probe = broken  # type: ignore[method-assign]
    await put(judge, publish(tmp_path, judge.settings.member, 1))
    await asyncio.wait_for(judge.serving, 30)
    assert judge.server.exit_code == 1
    # The desired weights stay: the next process starts clean and loads them before it is ready.
    again = await judges.start(member=judge.settings.member, weights=tmp_path)
    assert again.engine.loads[-1].version == 1


# Late starters, deadlines --------------------------------------------------------------------------------------------


async def test_a_late_starter_loads_the_desired_weights_before_it_is_ready(judges: Judges, tmp_path: Path) -> None:
    first = await judges.start(weights=tmp_path)
    await put(first, publish(tmp_path, first.settings.member, 3))
    await loaded(first, 3)
    engine = ScriptedEngine()
    engine.load_gate.clear()
    second = await judges.start(engine, member=first.settings.member, weights=tmp_path, ready=False)
    await until(lambda: second.service.replica.facts is not None)
    for probe, status in (("/livez", 200), ("/startupz", 503), ("/readyz", 503)):
        assert (await second.http.get(probe)).status_code == status
    engine.load_gate.set()
    await second.ready()
    assert engine.loads[-1].version == 3
    assert (await second.http.get("/startupz")).status_code == 200


async def test_a_late_starter_that_cannot_load_what_another_serves_does_not_take_work(
    judges: Judges, tmp_path: Path
) -> None:
    first = await judges.start(weights=tmp_path)
    await put(first, publish(tmp_path, first.settings.member, 3))
    status = await loaded(first, 3)
    second = await judges.start(
        ScriptedEngine(reject_weights="out of memory"), member=first.settings.member, weights=tmp_path, ready=False
    )
    await until(lambda: second.service.replica.info().reload_error)
    assert (await first.get("/v1/weights"))["desired"] == status["desired"]
    assert (await second.http.get("/readyz")).status_code == 503
    assert (await first.post("/v1/rollouts", rollouts("p1", run="r", step=3)))["weights"]["version"] == 3
    assert second.engine.calls == []
    second.engine.reject_weights = None
    await put(first, publish(tmp_path, first.settings.member, 4))
    await second.ready()
    assert second.engine.loads[-1].version == 4


async def test_a_reload_past_its_deadline_is_neither_ready_nor_alive(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path, reload_deadline_s=0.5)
    judge.engine.load_gate.clear()
    await put(judge, publish(tmp_path, judge.settings.member, 1))
    await until(lambda: judge.service.replica.state == "loading")

    async def down() -> bool:
        return [(await judge.http.get(p)).status_code for p in ("/livez", "/readyz", "/startupz")] == [503, 503, 200]

    await until(down)
    judge.engine.load_gate.set()
    await judge.ready()
    assert (await judge.http.get("/livez")).status_code == 200


async def test_waiting_for_a_version_ends_with_its_time(judges: Judges) -> None:
    judge = await judges.start()
    status = await judge.get("/v1/weights?version=9&wait_s=0.2")
    assert status["replicas"][0]["loaded"]["version"] == 0


async def test_a_redis_that_lost_its_memory_is_told_what_is_loaded(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    update = publish(tmp_path, judge.settings.member, 2, incarnation=3)
    await put(judge, update)
    await loaded(judge, 2)
    redis = judge.service.redis
    await redis.delete(*[key async for key in redis.scan_iter(f"{judge.settings.namespace}:*")])

    async def remembered() -> bool:
        return bool((await judge.get("/v1/weights"))["desired"] == tag_of(update).model_dump())

    await until(remembered)
    assert len(judge.engine.loads) == 1
    lease = await judge.put("/v1/trainer", {"run": "r", "step": 2, "ttl_s": 30})
    assert lease["incarnation"] == 4  # the counter caught up: no number is given twice
