"""`/v1/jobs`: background requests, idempotency, progress, cancel, retention."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from corl_judge.engines.base import EngineError, GenerateRequest, Sample
from corl_judge.jobs import JobId

from corl.wire import JobRequest
from tests.judge.harness import Judges, RunningJudge, item, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def submit(judge: RunningJudge, kind: str, request: dict[str, Any], key: str | None = None) -> str:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await judge.http.post("/v1/jobs", json={"kind": kind, "request": request}, headers=headers)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


async def ended(judge: RunningJudge, job: str) -> dict[str, Any]:
    async def status() -> dict[str, Any] | None:
        got = await judge.get(f"/v1/jobs/{job}?wait_s=5")
        return got if got["status"] in ("done", "failed", "cancelled") else None

    return await until(status)  # type: ignore[no-any-return]


async def test_a_jobs_result_is_what_the_route_would_answer(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "5", "4")))
    body = rollouts("p1", "p2", n=3, run="r", step=0)
    done = await ended(judge, await submit(judge, "rollouts", body))
    assert (done["status"], done["done"], done["total"], done["error"]) == ("done", 2, 2, None)
    assert done["result"] == await judge.post("/v1/rollouts", body)
    asked = scores(item("p1", "\\boxed{4}"), run="r", step=0)
    done = await ended(judge, await submit(judge, "scores", asked))
    direct = await judge.post("/v1/scores", asked)
    assert {**done["result"], "waited_s": 0} == {**direct, "waited_s": 0}


async def test_the_same_key_and_body_are_the_same_job_and_another_body_is_a_409(judges: Judges) -> None:
    judge = await judges.start()
    job = await submit(judge, "rollouts", rollouts("p1"), key="k1")
    assert await submit(judge, "rollouts", rollouts("p1"), key="k1") == job
    assert await submit(judge, "rollouts", rollouts("p1"), key="k2") != job
    other = {"kind": "rollouts", "request": rollouts("p2")}
    answer = await judge.http.post("/v1/jobs", json=other, headers={"idempotency-key": "k1"})
    assert answer.status_code == 409
    assert "k1" in answer.json()["detail"]


async def test_progress_is_part_of_the_status(judges: Judges) -> None:
    judge = await judges.start()
    held = asyncio.Event()
    generate = judge.engine.generate

    async def one_is_held(request: GenerateRequest) -> list[Sample]:
        if request.prompt == "problem p2":
            await held.wait()
        return await generate(request)

    judge.engine.generate = one_is_held  # type: ignore[method-assign]
    job = await submit(judge, "rollouts", rollouts("p1", "p2", "p3", run="r", step=0))

    async def two_are_done() -> bool:
        status = await judge.get(f"/v1/jobs/{job}")
        assert (status["total"], status["result"]) == (3, None)
        return bool(status["status"] == "running" and status["done"] == 2)

    await until(two_are_done)
    held.set()
    assert (await ended(judge, job))["done"] == 3


async def test_a_job_whose_replica_ended_before_it_was_queued_is_done_all_the_same(judges: Judges) -> None:
    judge = await judges.start()
    body = JobRequest.model_validate({"kind": "rollouts", "request": rollouts("p1")}).model_dump_json().encode()
    record, _ = await judge.service.records.create(kind="rollouts", request=body, queue="requests", keys=["k"])
    assert (await judge.get(f"/v1/jobs/{record.id}"))["status"] == "queued"
    assert (await ended(judge, record.id))["status"] == "done"


async def test_a_job_whose_result_is_gone_is_410_and_not_done_again(judges: Judges) -> None:
    judge = await judges.start()
    job = await submit(judge, "rollouts", rollouts("p1"))
    await ended(judge, job)
    redis = judge.service.redis
    async for key in redis.scan_iter(f"{judge.settings.namespace}:requests:*"):
        await redis.delete(key)
    before = len(judge.engine.calls)
    assert (await judge.http.get(f"/v1/jobs/{job}?wait_s=1")).status_code == 410
    assert len(judge.engine.calls) == before


async def test_waiting_for_a_job_ends_with_its_time(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    job = await submit(judge, "rollouts", rollouts("p1"))
    assert (await judge.get(f"/v1/jobs/{job}?wait_s=0.3"))["status"] in ("queued", "running")


async def test_a_failed_job_says_why(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.fail = lambda _prompt: EngineError("no memory left")
    failed = await ended(judge, await submit(judge, "rollouts", rollouts("p1")))
    assert failed["status"] == "failed"
    assert failed["result"] is None
    assert (failed["error"]["status"], failed["error"]["type"]) == (502, "urn:corl:engine-failed")
    assert "no memory left" in failed["error"]["detail"]
    too_long = await ended(judge, await submit(judge, "rollouts", rollouts("x" * 500 + "y" * 12, n=1) | _long()))
    assert (too_long["status"], too_long["error"]["status"]) == ("failed", 422)


def _long() -> dict[str, Any]:
    return {"problems": [{"problem_id": "p", "prompt": "x" * 5000}]}


async def test_a_withdrawn_job_stops_its_work_but_not_that_of_others(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    job = await submit(judge, "rollouts", rollouts("mine", "shared", run="r", step=0))
    staying = asyncio.create_task(judge.post("/v1/rollouts", rollouts("shared", run="r", step=0)))
    await until(lambda: judge.engine.running == 2 and judge.service.open["rollouts"].count == 1)
    answer = await judge.http.delete(f"/v1/jobs/{job}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    await until(lambda: judge.engine.cancelled == 1)
    judge.engine.gate.set()
    assert (await staying)["problems"][0]["problem_id"] == "shared"
    assert (await judge.get(f"/v1/jobs/{job}"))["status"] == "cancelled"
    assert (await judge.http.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"


async def test_a_done_job_stays_done_when_it_is_withdrawn(judges: Judges) -> None:
    judge = await judges.start()
    job = await submit(judge, "rollouts", rollouts("p1"))
    await ended(judge, job)
    assert (await judge.http.delete(f"/v1/jobs/{job}")).json()["status"] == "done"


async def test_any_replica_answers_for_any_job_and_a_dead_ones_jobs_go_on(judges: Judges) -> None:
    first = await judges.start()
    first.engine.gate.clear()
    job = await submit(first, "rollouts", rollouts("p1", run="r", step=0))
    await until(lambda: first.engine.running == 1)
    second = await judges.start(member=first.settings.member)
    await first.stop()
    done = await ended(second, job)
    assert done["status"] == "done"
    assert second.engine.generated == 4


async def test_jobs_that_never_were_are_404_and_past_ones_410(judges: Judges) -> None:
    judge = await judges.start()
    for method in ("GET", "DELETE"):
        for job, status in (
            ("nonsense", 404),
            (JobId.new(time.time()), 404),
            (JobId.new(time.time() - 2 * judge.settings.result_ttl_s), 410),
        ):
            answer = await judge.http.request(method, f"/v1/jobs/{job}")
            assert answer.status_code == status, (method, job, answer.text)


async def test_wrong_jobs_are_refused_at_once(judges: Judges) -> None:
    judge = await judges.start()
    bodies: list[dict[str, Any]] = [
        {"kind": "rollouts"},
        {"kind": "rollouts", "request": scores(item("p1", "x"))},
        {"kind": "other", "request": rollouts("p1")},
        {"kind": "rollouts", "request": {**rollouts("p1"), "n": 100_000}},
    ]
    for body in bodies:
        answer = await judge.http.post("/v1/jobs", json=body)
        assert answer.status_code == 422, body
        assert answer.json()["errors"]
        assert "Request" not in answer.json()["detail"]  # the errors are of the kind that was named
