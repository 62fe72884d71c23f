"""Probes, metrics, logs, the docs page: what a supervisor and an operator see."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from corl_judge import logs
from corl_judge.engines.base import DeviceMemory, EngineDead
from prometheus_client.parser import text_string_to_metric_families

from tests.judge.harness import Judges, RunningJudge, item, publish, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def probes(judge: RunningJudge) -> list[int]:
    return [(await judge.http.get(path)).status_code for path in ("/livez", "/readyz", "/startupz")]


async def test_alive_but_neither_started_nor_ready_while_the_engine_starts(judges: Judges) -> None:
    engine = ScriptedEngine(start_delay_s=1.0)
    judge = await judges.start(engine, ready=False)
    assert await probes(judge) == [200, 503, 503]
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p1"))
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:corl:starting")
    assert answer.headers["retry-after"]
    await judge.ready()
    assert await probes(judge) == [200, 200, 200]


async def test_an_engine_that_does_not_start_ends_the_process_with_the_cause(
    judges: Judges, caplog: pytest.LogCaptureFixture
) -> None:
    judge = await judges.start(ScriptedEngine(start_error="model '/x': no such folder"), ready=False)
    await asyncio.wait_for(judge.serving, 30)
    assert judge.server.exit_code == 1
    assert "model '/x': no such folder" in caplog.text


async def test_an_engine_that_dies_idle_ends_the_process(judges: Judges, caplog: pytest.LogCaptureFixture) -> None:
    judge = await judges.start()
    judge.engine.die()
    await asyncio.wait_for(judge.serving, 30)
    assert judge.server.exit_code == 1
    assert "the scripted engine is dead" in caplog.text


async def test_an_engine_that_dies_under_work_ends_the_process_and_the_work_goes_to_another(judges: Judges) -> None:
    first = await judges.start(ScriptedEngine(boxed("4")))
    second = await judges.start(ScriptedEngine(boxed("4")), member=first.settings.member)
    second.hold()
    first.engine.gate.clear()
    asked = asyncio.create_task(second.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: first.engine.running == 1)
    first.engine.die()
    await asyncio.wait_for(first.serving, 30)
    assert first.server.exit_code == 1
    second.release()
    assert (await asked)["problems"][0]["vote"]["answer"] == "4"


async def test_a_request_of_a_dead_engine_is_answered_and_not_left_hanging(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    asked = asyncio.create_task(judge.http.post("/v1/rollouts", json=rollouts("p1", run="r", step=0)))
    await until(lambda: judge.engine.running == 1)
    judge.engine.die()
    assert (await asyncio.wait_for(asked, 30)).status_code == 503
    await asyncio.wait_for(judge.serving, 30)


async def test_the_probe_generates_only_when_nothing_else_does(judges: Judges) -> None:
    judge = await judges.start(probe_every_s=0.1)
    await until(lambda: judge.engine.probes >= 2)


async def test_a_stuck_engine_is_found_by_the_probe(judges: Judges) -> None:
    judge = await judges.start(probe_every_s=0.1, item_deadline_s=0.5)

    async def stuck() -> None:
        await asyncio.Event().wait()

    judge.engine.probe = stuck  # type: ignore[method-assign]
    await asyncio.wait_for(judge.serving, 30)
    assert judge.server.exit_code == 1
    assert isinstance(judge.service.replica.dead, EngineDead)


async def test_a_long_generation_does_not_flap_the_probes(judges: Judges) -> None:
    judge = await judges.start(probe_every_s=0.05)
    judge.engine.gate.clear()

    async def slow() -> None:
        await judge.engine.gate.wait()

    judge.engine.probe = slow  # type: ignore[method-assign]
    asked = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: judge.engine.running == 1)
    for _ in range(20):
        assert await probes(judge) == [200, 200, 200]
        await asyncio.sleep(0.02)
    judge.engine.gate.set()
    await asked


# Metrics, logs, docs -------------------------------------------------------------------------------------------------


async def metrics(judge: RunningJudge) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await judge.http.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_count_requests_tokens_votes_weights_and_reloads(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "4", "5")), weights=tmp_path)
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    await judge.post("/v1/scores", scores(item("p1", "\\boxed{4}"), run="r", step=0))
    await judge.post("/v1/scores", scores(item("p2", "\\boxed{4}"), policy={"samples": 4, "threshold": 0.9}))
    await judge.http.post("/v1/scores", json={})
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 3), expect=202)
    await judge.get("/v1/weights?version=3&wait_s=30")
    await until(lambda: judge.service.replica.gate.is_open)
    seen = await metrics(judge)

    def value(name: str, **labels: str) -> float:
        return seen[(name, tuple(sorted(labels.items())))]

    assert value("corl_requests_total", route="/v1/scores", method="POST", status="200") == 2
    assert value("corl_requests_total", route="/v1/scores", method="POST", status="422") == 1
    assert value("corl_request_seconds_count", route="/v1/rollouts") == 1
    tokens = len("So it is \\boxed{4}.") + 1
    assert value("corl_generated_tokens_total", work="rollouts") == 4 * tokens
    assert value("corl_generated_tokens_total", work="votes") == 4 * tokens
    assert value("corl_votes_total", status="ok", source="rollout") == 1
    assert value("corl_votes_total", status="weak", source="fresh") == 1
    assert value("corl_vote_share_count") == 2
    assert value("corl_queue_wait_seconds_count", work="rollouts") == 1
    assert value("corl_execution_seconds_count", work="votes") == 1
    assert value("corl_weights_desired_version") == value("corl_weights_loaded_version") == 3
    assert value("corl_reload_seconds_count") == 1
    assert value("corl_engine_up") == 1


class OnAccelerator(ScriptedEngine):
    memory: DeviceMemory | None = None

    def device_memory(self) -> DeviceMemory | None:
        return self.memory


async def test_metrics_show_peak_memory_of_the_host_and_of_a_device_that_counts_it(judges: Judges) -> None:
    engine = OnAccelerator(boxed("4"))
    judge = await judges.start(engine)
    before = await metrics(judge)
    assert before[("corl_host_memory_peak_bytes", ())] > 20e6
    assert not any(name.startswith("corl_device_memory") for name, _ in before), "its model is not on a device"
    engine.memory = DeviceMemory(allocated=3 << 30, reserved=4 << 30)
    seen = await metrics(judge)
    assert seen[("corl_device_memory_peak_bytes", (("kind", "allocated"),))] == 3 << 30
    assert seen[("corl_device_memory_peak_bytes", (("kind", "reserved"),))] == 4 << 30


async def test_logs_carry_the_requests_id_run_member_and_step(judges: Judges, caplog: pytest.LogCaptureFixture) -> None:
    judge = await judges.start()
    lines: list[dict[str, object]] = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(logs.JsonFormatter().format(record)))

    handler = Capture()
    handler.addFilter(logs.ContextFilter(["sesame-key"]))
    log = logging.getLogger("corl_judge")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        headers = {"x-request-id": "req-1"}
        answer = await judge.http.post("/v1/rollouts", json=rollouts("p1", run="r", step=3), headers=headers)
        assert answer.headers["x-request-id"] == "req-1"
        log.warning("the key is %s", "sesame-key")
    finally:
        log.removeHandler(handler)
    [line] = [entry for entry in lines if "/v1/rollouts" in str(entry["message"])]
    assert (line["request_id"], line["member"]) == ("req-1", judge.settings.member)
    assert (line["run"], line["step"]) == ("r", 3)
    assert "sesame-key" not in json.dumps(lines)
    assert any(entry["message"] == "the key is ***" for entry in lines)


async def test_the_docs_page_needs_nothing_from_elsewhere(judges: Judges) -> None:
    judge = await judges.start()
    page = await judge.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "openapi.json" in page.text
