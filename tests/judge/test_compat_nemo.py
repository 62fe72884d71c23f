"""A judge as a NeMo-Gym resources server: shapes, masking, faults, the rollout's path prefix, generated requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from corl_judge.engines.base import EngineError
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.adapters.conftest import sums
from tests.judge.harness import JudgeProcess, Judges, RunningJudge
from tests.scripted import ScriptedEngine


@pytest.fixture
async def judge(judges: Judges) -> RunningJudge:
    engine = ScriptedEngine(sums, fail=lambda text: EngineError("out of memory") if "broken" in text else None)
    return await judges.start(engine, compat="nemo-gym")


def message(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def rollout(question: Any, *output: dict[str, Any], **row: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": question, "temperature": 1.0},
        "response": {
            "id": "resp_1",
            "created_at": 1767225600.0,
            "model": "policy",
            "object": "response",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        },
        "question": "row's own",
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        **row,
    }


async def test_verify_gives_the_same_body_back_with_its_reward(judge: RunningJudge) -> None:
    body = rollout([{"role": "user", "content": "1 + 2", "type": "message"}], message("It is \\boxed{3}."))
    answer = await judge.http.post("/verify", json=body)
    assert answer.status_code == 200
    added = {
        "reward": 1.0,
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
        "labeled": 1.0,
        "vote_share": 0.75,
    }
    assert answer.content == json.dumps({**body, **added}).encode()
    assert (await judge.http.post("/ng-rollout/3-1/verify", json=body)).content == answer.content
    assert len(judge.engine.calls) == 1


@pytest.mark.parametrize(
    ("question", "output", "reward"),
    [
        ("1 + 2", [message("\\boxed{4}")], 0.0),
        ("1 + 2", [{"type": "reasoning", "summary": []}, message("\\boxed{4}"), message("\\boxed{3}")], 1.0),
        ("1 + 2", [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}], 0.0),
        ("1 + 2", [], 0.0),
        (
            [{"role": "developer", "content": "Add: "}, {"role": "user", "content": "1 + 2"}],
            [message("\\boxed{3}")],
            1.0,
        ),
        ([{"role": "user", "content": [{"type": "input_text", "text": "1 + 2"}]}], [message("\\boxed{3}")], 1.0),
    ],
)
async def test_inputs_and_outputs_of_the_responses_api(
    judge: RunningJudge, question: Any, output: list[dict[str, Any]], reward: float
) -> None:
    assert (await judge.post("/verify", rollout(question, *output)))["reward"] == reward


async def test_without_a_label_the_sample_is_masked_or_refused(judge: RunningJudge, judges: Judges) -> None:
    body = rollout("split 1", message("\\boxed{1}"))
    answer = await judge.post("/verify", body)
    assert (answer["reward"], answer["mask_sample"], answer["labeled"]) == (0.0, True, 0.0)
    assert answer["failure_reason"] == "no label: the judge's vote is 'tie'"
    strict = await judges.start(ScriptedEngine(sums), compat="nemo-gym", compat_on_unlabeled="error")
    assert (await strict.post("/verify", body, expect=422))["type"] == "urn:corl:unlabeled"


async def test_faults_are_statuses(judge: RunningJudge) -> None:
    assert "out of memory" in (await judge.post("/verify", rollout("broken", message("x")), expect=502))["detail"]
    for wrong, field in [
        (rollout([], message("x")), "responses_create_params.input"),
        (rollout([{"role": "user", "content": 3}], message("x")), "responses_create_params.input"),
        ({**rollout("1"), "response": {}}, "response.output"),
        ({"response": {"output": []}}, "responses_create_params"),
    ]:
        assert (await judge.post("/verify", wrong, expect=422))["errors"][0]["field"] == field


async def test_numbers_that_are_none(judge: RunningJudge) -> None:
    raw = json.dumps(rollout("1 + 2", message("x"), extra=float("nan")))
    answer = await judge.http.post("/verify", content=raw)
    assert (answer.status_code, "NaN" in answer.json()["detail"]) == (422, True)
    raw = '{"verify_responses": [{"reward": 1, "a": NaN, "b": 1e999, "c": 1' + "0" * 400 + "}]}"
    answer = await judge.http.post("/aggregate_metrics", content=raw)
    assert answer.json()["agent_metrics"]["mean/reward"] == 1.0
    assert len(answer.json()["agent_metrics"]) == 6


async def test_the_other_routes(judge: RunningJudge) -> None:
    assert (await judge.http.get("/")).content == b'{"status": "ok"}'
    assert (await judge.http.get("/reverify_mode")).content == b'"stateless"'
    for path in ("/seed_session", "/ng-rollout/3-1/seed_session"):
        assert (await judge.http.post(path, json={"anything": 1})).content == b"{}"
    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "vote_share": 0.5, "mask_sample": False},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.0, "vote_share": 0.5, "mask_sample": False},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 0.0, "vote_share": 0.5, "mask_sample": True},
        {"_ng_task_index": 2, "_ng_rollout_index": 0, "reward": 1.0, "vote_share": 1.0, "mask_sample": False},
    ]
    metrics = await judge.post("/aggregate_metrics", {"verify_responses": rows})
    assert [row["_ng_task_index"] for row in metrics["group_level_metrics"]] == [0, 2]
    assert metrics["group_level_metrics"][0]["mean/reward"] == 0.5
    assert metrics["key_metrics"] == {"mean/reward": 2 / 3}
    assert metrics["agent_metrics"]["max/vote_share"] == 1.0
    assert metrics["agent_metrics"]["masked"] == 1
    empty = await judge.post("/aggregate_metrics", {"verify_responses": []})
    assert empty == {"group_level_metrics": [], "agent_metrics": {"masked": 0}, "key_metrics": {}}


async def test_only_a_judge_that_was_told_so_is_one(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    assert (await judge.http.post("/verify", json=rollout("1 + 2"))).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/verify"), ("POST", "/aggregate_metrics")])
async def test_generated_requests_get_only_documented_answers(
    judges: Judges, redis_url: str, tmp_path: Any, method: str, path: str
) -> None:
    judge = await JudgeProcess.start(
        tmp_path,
        redis_url,
        answers=["4", "5", "4", "x"],
        member=f"nemo-{tmp_path.name[-8:]}",
        compat="nemo-gym",
        log_level="warning",
    )
    try:
        await judge.ready()
        await _generated(judge.url, method, path)
        assert "unexpected error" not in judge.log.read_text()
    finally:
        await judge.kill()


async def _generated(url: str, method: str, path: str) -> None:
    import asyncio

    def run() -> None:
        operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][method]
        checks = [status_code_conformance, content_type_conformance, response_schema_conformance, not_a_server_error]

        @seed(20260817)
        @settings(
            max_examples=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        @given(case=operation.as_strategy())
        def each(case: schemathesis.Case[Any]) -> None:
            case.validate_response(case.call(timeout=30), checks=checks)

        each()

    await asyncio.to_thread(run)
