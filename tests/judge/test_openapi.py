"""The OpenAPI document is complete and the service keeps to it: schemathesis with a fixed seed, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.judge.harness import JudgeProcess, Judges

OPERATIONS = [
    ("POST", "/v1/rollouts"),
    ("POST", "/v1/scores"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/{job_id}"),
    ("DELETE", "/v1/jobs/{job_id}"),
    ("PUT", "/v1/weights"),
    ("GET", "/v1/weights"),
    ("PUT", "/v1/trainer"),
    ("DELETE", "/v1/votes"),
    ("GET", "/v1/model"),
    ("POST", "/compat/openrlhf/get_reward"),
    ("POST", "/compat/slime/score"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/startupz"),
    ("GET", "/metrics"),
]
SEED = 20260817


async def test_every_route_is_documented_with_examples_and_errors(judges: Judges) -> None:
    judge = await judges.start()
    api = await judge.get("/openapi.json")
    documented = {(method.upper(), path) for path, methods in api["paths"].items() for method in methods}
    assert documented == set(OPERATIONS)
    for method, path in OPERATIONS:
        operation = api["paths"][path][method.lower()]
        assert operation["summary"], path
        if method in ("POST", "PUT"):
            body = operation["requestBody"]["content"]["application/json"]
            assert body["example"]
            assert "422" in operation["responses"]
            assert "413" in operation["responses"]
        if path.startswith("/v1/"):
            for status in ("401", "503"):
                problem = operation["responses"][status]["content"]["application/problem+json"]
                assert problem["schema"]["$ref"].endswith("/ErrorBody")
                assert problem["example"]["status"] == int(status)
    assert "HTTPValidationError" not in api["components"]["schemas"]
    _resolve_all(api, api)


async def test_the_examples_are_accepted_as_they_stand(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    api = await judge.get("/openapi.json")
    for method, path in OPERATIONS:
        operation = api["paths"][path][method.lower()]
        if "requestBody" not in operation:
            continue
        example = operation["requestBody"]["content"]["application/json"]["example"]
        answer = await judge.http.request(method, path, json=example)
        if path == "/v1/weights":
            assert "no manifest.json" in answer.text  # everything but the folder itself is right
        elif path == "/v1/trainer":
            assert answer.status_code == 200, answer.text
        else:
            assert answer.status_code in (200, 202), answer.text


def _resolve_all(node: Any, api: dict[str, Any]) -> None:
    if isinstance(node, dict):
        if (ref := node.get("$ref")) is not None:
            target: Any = api
            for part in ref.removeprefix("#/").split("/"):
                target = target[part]
        for value in node.values():
            _resolve_all(value, api)
    elif isinstance(node, list):
        for value in node:
            _resolve_all(value, api)


WRONG = [
    ("POST", "/v1/scores", b"", 422),
    ("POST", "/v1/scores", b"{", 422),
    ("POST", "/v1/scores", b"[" * 100_000, 422),
    ("POST", "/v1/scores", b'{"items": 1e999}', 422),
    ("POST", "/v1/scores", b'"\\ud800"', 422),
    ("POST", "/v1/scores", b"\xff\xfe", 422),
    ("POST", "/v1/jobs", b"[" * 100_000, 422),
    ("POST", "/v1/rollouts", b'{"problems": [{"problem_id": "p", "prompt": [99999999999999999999]}], "n": 1}', 422),
    ("PUT", "/v1/trainer", b'{"run": "r", "step": 0, "ttl_s": 1, "incarnation": 99999999999999999999}', 422),
    ("PATCH", "/v1/scores", b"", 405),
    ("GET", "/v1/nothing", b"", 404),
    ("GET", "/v1/weights?version=-1", b"", 422),
    ("GET", "/v1/weights?wait_s=nan", b"", 422),
]


async def test_whatever_comes_is_answered_with_a_problem_document(judges: Judges) -> None:
    judge = await judges.start()
    for method, route, content, status in WRONG:
        answer = await judge.http.request(method, route, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status, (method, route, content[:80], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        body = answer.json()
        assert body["status"] == status
        assert body["type"].startswith("urn:corl:")
        assert body["title"]


# Generated requests --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A judge in a process of its own, small in its limits, so that no generated request waits long."""
    folder = tmp_path_factory.mktemp("schemathesis")
    loop = asyncio.new_event_loop()
    settings_ = {
        "member": "schemathesis",
        "weights": folder,
        "deadline_s": 2.0,
        "result_ttl_s": 60.0,
        "item_deadline_s": 2.0,
        "start_wait_s": 0.0,
        "max_samples": 4,
        "log_level": "warning",
    }
    judge = loop.run_until_complete(
        JudgeProcess.start(folder, redis_url, answers=["4", "5", "4", "x"], **settings_)  # type: ignore[arg-type]
    )
    loop.run_until_complete(judge.ready())
    yield judge.url
    log = judge.log.read_text()
    loop.run_until_complete(judge.kill())
    loop.close()
    assert "unexpected error" not in log, log


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{m} {p}" for m, p in OPERATIONS])
def test_generated_requests_get_only_documented_answers(running: str, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{running}/openapi.json")
    operation = schema[path][method]
    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
    probes = path in ("/livez", "/readyz", "/startupz")

    @seed(SEED)
    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy())
    def run(case: schemathesis.Case[Any]) -> None:
        response = case.call(timeout=30)
        case.validate_response(response, checks=checks)
        if response.status_code == 503 and not probes:
            # Only where a deadline of the request passed: this judge is up.
            assert json.loads(response.content)["type"] == "urn:corl:unavailable", response.content
            assert response.headers["retry-after"]
        else:
            case.validate_response(response, checks=[not_a_server_error])

    run()


def test_the_judge_still_works_after_all_that(running: str) -> None:
    body = {
        "items": [{"id": "1", "problem_id": "1", "prompt": "q", "completions": ["\\boxed{4}"]}],
        "policy": {"samples": 4},
    }
    answer = httpx.post(f"{running}/v1/scores", json=body, timeout=30)
    assert answer.json()["items"][0]["rewards"] == [1.0]
