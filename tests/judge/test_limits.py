"""Limits: body, items, samples, queue depth, open requests; and that full is 429 and not a crash."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.judge.harness import JudgeProcess, Judges, item, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def test_a_body_over_the_limit_is_413_whether_its_length_is_announced_or_not(judges: Judges) -> None:
    judge = await judges.start(max_body_bytes=2000)
    body = b'{"items": "' + b"x" * 5000 + b'"}'

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    for content in (body, chunks()):
        answer = await judge.http.post("/v1/scores", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:corl:too-large"
    assert (await judge.http.get("/v1/model")).status_code == 200


async def test_counts_over_the_limits_are_422_and_name_the_limit(judges: Judges) -> None:
    judge = await judges.start(max_items=2, max_completions=3, max_samples=4)
    for route, body, field in (
        ("/v1/rollouts", rollouts("a", "b", "c"), "problems"),
        ("/v1/rollouts", rollouts("a", n=5), "n"),
        ("/v1/rollouts", rollouts("a", deadline_s=80_000), "deadline_s"),
        ("/v1/scores", scores(item("a"), item("b"), item("c"), policy={"samples": 1}), "items"),
        ("/v1/scores", scores(item("a", *"wxyz"), policy={"samples": 1}), "items.completions"),
        ("/v1/scores", scores(item("a"), policy={"samples": 5}), "policy.samples"),
        ("/v1/scores", scores(item("a"), policy={"samples": 1, "wait_s": 80_000}), "policy.wait_s"),
    ):
        answer = await judge.http.post(route, json=body)
        assert answer.status_code == 422, answer.text
        assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert judge.engine.generated == 0


async def test_limits_are_told(judges: Judges) -> None:
    judge = await judges.start(max_items=2)
    limits = (await judge.get("/v1/model"))["limits"]
    assert (limits["max_items"], limits["max_model_len"]) == (2, 4096)


async def test_a_full_queue_is_429_for_its_kind_and_only_for_it(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), max_queued_rollouts=2, max_problems_in_flight=1)
    judge.engine.gate.clear()
    waiting = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", "p2", run="r", step=0)))

    async def full() -> bool:
        return (await judge.service.queues["rollouts"].depth()).total == 2

    await until(full)
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p3", run="r", step=0))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["type"] == "urn:corl:busy"
    # Joining work that is queued adds none, and votes have room of their own.
    joining = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", "p2", run="r", step=0)))
    scoring = asyncio.create_task(judge.post("/v1/scores", scores(item("p9", "\\boxed{4}"))))
    await until(lambda: judge.service.open["rollouts"].count == 2 and judge.service.open["scores"].count == 1)
    judge.engine.gate.set()
    assert (await joining)["problems"] == (await waiting)["problems"]
    assert (await scoring)["items"][0]["status"] == "scored"
    assert (await judge.post("/v1/rollouts", rollouts("p3", run="r", step=0)))["problems"]


async def test_neither_kind_of_work_starves_the_other(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), max_problems_in_flight=4)
    judge.engine.gate.clear()
    many = asyncio.create_task(
        judge.post("/v1/rollouts", rollouts(*(f"p{i}" for i in range(100)), n=1, run="r", step=0))
    )
    await until(lambda: judge.engine.running == 4)
    scoring = asyncio.create_task(judge.post("/v1/scores", scores(item("q", "\\boxed{4}"))))
    await until(lambda: judge.service.open["scores"].count == 1)
    judge.engine.gate.set()
    await scoring
    started = [call.prompt for call in judge.engine.calls]
    await many
    assert len(started) < 60  # the vote did not wait for all rollouts that were queued before it


async def test_requests_beyond_what_a_replica_holds_open_are_429(judges: Judges) -> None:
    judge = await judges.start(max_open_requests=2)
    judge.engine.gate.clear()
    held = [asyncio.create_task(judge.post("/v1/rollouts", rollouts(f"p{i}"))) for i in range(2)]
    await until(lambda: judge.service.open["rollouts"].count == 2)
    assert (await judge.http.post("/v1/rollouts", json=rollouts("p3"))).status_code == 429
    judge.engine.gate.set()
    await asyncio.gather(*held)
    assert (await judge.http.post("/v1/rollouts", json=rollouts("p3"))).status_code == 200


async def test_two_thousand_requests_at_once_are_all_answered(redis_url: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"member": f"m{uuid.uuid4().hex[:10]}", "max_queued_votes": 50, "max_open_requests": 500}
    judge = await JudgeProcess.start(tmp_path, redis_url, answers=["4"], log_level="error", **settings)
    try:
        await judge.ready()
        answers = await asyncio.gather(*(raw_post(judge.url, f"p{index % 300}") for index in range(2000)))
        statuses = Counter(status for status, _, _ in answers)
        assert set(statuses) <= {200, 429}, statuses
        assert statuses[200] > 0
        for status, head, body in answers:
            if status == 200:
                assert json.loads(body)["items"][0]["rewards"] == [1.0]
            else:
                assert b"retry-after" in head
        status, _, _ = await raw_post(judge.url, "p0")
        assert status == 200
    finally:
        await judge.kill()


async def raw_post(url: str, problem: str) -> tuple[int, bytes, bytes]:
    """One request on a connection of its own. (Client libraries take quadratic time at this many connections.)"""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(scores(item(problem, "\\boxed{4}"))).encode()
    head = f"POST /v1/scores HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    first, _, content = answer.partition(b"\r\n\r\n")
    return int(first.split(b" ")[1]), first.lower(), content
