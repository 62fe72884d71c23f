"""`corl judge` as a process: exit codes, signals, flags, a Redis of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from corl_judge.cli import settings_from
from corl_judge.settings import Settings

from tests.judge.harness import JudgeProcess, Judges, item, rollouts, scores, until
from tests.judge.test_wait_rule import write_cohort
from tests.scripted import ScriptedEngine, boxed


def member() -> str:
    return f"m{uuid.uuid4().hex[:10]}"


async def test_sigterm_lets_running_work_finish_and_exits_zero(redis_url: str, tmp_path: Path) -> None:
    judge = await JudgeProcess.start(tmp_path, redis_url, answers=["4"], delay_s=1.0, member=member())
    try:
        await judge.ready()
        async with httpx.AsyncClient(base_url=judge.url, timeout=60) as http:
            # Several, all ending with the drain: none may be sent away with its result already stored.
            names = [f"p{number}" for number in range(8)]
            asked = [
                asyncio.create_task(http.post("/v1/rollouts", json=rollouts(name, run="r", step=0))) for name in names
            ]
            await until(lambda: _depth(http, "running", len(names)))
            judge.send(signal.SIGTERM)
            answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * len(names)
        assert await judge.ended() == 0
        assert "draining" in judge.log.read_text()
    finally:
        await judge.kill()


async def _depth(http: httpx.AsyncClient, state: str, count: int = 1) -> bool:
    wanted = f'corl_queue_items{{state="{state}",work="rollouts"}} {count:.1f}'
    return wanted in (await http.get("/metrics")).text


async def test_while_draining_nothing_new_is_taken_and_what_cannot_finish_goes_to_another(
    judges: Judges, redis_url: str, tmp_path: Path
) -> None:
    first = await judges.start(ScriptedEngine(boxed("4")))
    first.hold()
    other = await JudgeProcess.start(
        tmp_path, redis_url, answers=["4"], delay_s=60, member=first.settings.member, drain_s=2.0
    )
    try:
        await other.ready()
        asked = asyncio.create_task(first.post("/v1/rollouts", rollouts("p1", run="r", step=0)))

        async def taken() -> bool:
            return (await first.service.queues["rollouts"].depth()).pending == 1

        await until(taken)
        async with httpx.AsyncClient(base_url=other.url, timeout=60) as http:
            held = asyncio.create_task(http.post("/v1/rollouts", json=rollouts("p1", run="r", step=0)))
            other.send(signal.SIGTERM)

            async def draining() -> bool:
                return (await http.get("/readyz")).status_code == 503

            await until(draining)
            assert (await http.get("/livez")).status_code == 200
            refused = await http.post("/v1/rollouts", json=rollouts("p2", run="r", step=0))
            assert (refused.status_code, refused.json()["type"]) == (503, "urn:corl:draining")
            assert (await held).status_code == 503
        assert await other.ended() == 0
        first.release()
        assert (await asked)["problems"][0]["vote"]["answer"] == "4"
        assert len((await first.get("/v1/weights"))["replicas"]) == 1
    finally:
        await other.kill()


async def test_an_engine_that_dies_takes_the_process_down_with_the_cause_in_the_log(
    redis_url: str, tmp_path: Path
) -> None:
    judge = await JudgeProcess.start(tmp_path, redis_url, answers=["4"], member=member())
    try:
        await judge.ready()
        async with httpx.AsyncClient(base_url=judge.url, timeout=60) as http:
            body = rollouts("p1", run="r", step=0)
            body["problems"][0]["prompt"] = "kill the engine"
            answer = await http.post("/v1/rollouts", json=body)
            assert answer.status_code == 503
        assert await judge.ended() == 1
        lines = [json.loads(line) for line in judge.log.read_text().splitlines()]
        assert any(line["level"] == "critical" and "dead" in line["message"] for line in lines)
    finally:
        await judge.kill()


async def test_a_redis_restart_is_survived(tmp_path: Path) -> None:
    from corl.localredis import LocalRedis

    folder = tmp_path / "redis"
    folder.mkdir()
    server = LocalRedis(folder, append_only=True).start()
    judge = await JudgeProcess.start(tmp_path, server.url, answers=["4"], member=member())
    try:
        await judge.ready()
        async with httpx.AsyncClient(base_url=judge.url, timeout=60) as http:
            first = await http.post("/v1/rollouts", json=rollouts("p1", run="r", step=0))
            assert first.status_code == 200
            server.stop()
            server = LocalRedis(folder, append_only=True).start()
            asked = scores(item("p1", "\\boxed{4}"), run="r", step=0)

            async def again() -> Any:
                answer = await http.post("/v1/scores", json=asked)
                return answer if answer.status_code == 200 else None

            scored = await until(again, deadline_s=60)
            assert scored.json()["items"][0]["vote"]["source"] == "rollout"
            assert (await http.post("/v1/rollouts", json=rollouts("p2", run="r", step=0))).status_code == 200
    finally:
        await judge.kill()
        server.stop()


# The command ---------------------------------------------------------------------------------------------------------


async def corl_judge(*arguments: str, **env: str) -> tuple[int, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CORL_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "corl_judge",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean, **env},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_help_shows_every_setting_with_its_variable() -> None:
    code, output = await corl_judge("--help")
    assert code == 0
    shown = "".join(output.split())
    for name in Settings.model_fields:
        if name not in ("api_key", "cohort_file"):
            assert f"--{name.replace('_', '-')}" in shown
            assert f"(CORL_{name.upper()})" in shown
    assert "CORL_API_KEY" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "m", "--host", "0.0.0.0"], "CORL_API_KEY"),
        ([], "--model"),
        (["nowhere.yaml", "--member", "a"], "nowhere.yaml"),
        (["--model", "m", "--port", "99999"], "port"),
        (["--model", "m", "--engine-options", "{"], "engine-options"),
        (["--model", "m", "--no-such-flag"], "no-such-flag"),
    ],
)
async def test_wrong_use_is_one_line_that_names_it(arguments: list[str], words: str) -> None:
    code, output = await corl_judge(*arguments)
    assert code == 2
    assert words in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) == 1


async def test_no_redis_at_the_url_is_an_error_that_names_it_without_its_password(tmp_path: Path) -> None:
    socket = tmp_path / "none.sock"
    code, output = await corl_judge(
        "--model", "m", "--engine", "nonsense", "--redis", f"unix://u:secret@{socket}", "--port", "0"
    )
    assert code == 1
    assert "nonsense" in output
    assert "secret" not in output


def test_precedence_is_flag_variable_cohort_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, path = write_cohort(tmp_path)
    text = path.read_text() + "judge: {max_items: 11, max_samples: 12, reload_deadline_s: 13}\nseed: 7\n"
    path.write_text(text)
    monkeypatch.setenv("CORL_MAX_SAMPLES", "22")
    monkeypatch.setenv("CORL_RELOAD_DEADLINE_S", "23")
    settings = settings_from(path, {"member": name, "reload_deadline_s": 33.0, "port": None})
    assert (settings.max_items, settings.max_samples, settings.reload_deadline_s) == (11, 22, 33.0)
    assert (settings.seed, settings.port, settings.engine) == (7, 8000, "transformers")
    assert settings.model == str(tmp_path / "model")
    assert settings.cohort_file == path


async def test_a_member_that_is_not_in_the_cohort_is_refused(tmp_path: Path) -> None:
    name, path = write_cohort(tmp_path)
    code, output = await corl_judge(str(path), "--member", "zz")
    assert code == 2
    assert "zz" in output
    code, output = await corl_judge(str(path))
    assert code == 2
    assert name in output
