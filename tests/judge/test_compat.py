"""What the clients of OpenRLHF and slime send, byte for byte, and what they get; load; faults."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from corl_judge.engines.base import EngineError

from tests.adapters.conftest import sums
from tests.judge.harness import Judges, RunningJudge, until
from tests.scripted import ScriptedEngine, decode

OPENRLHF = "/compat/openrlhf/get_reward"
SLIME = "/compat/slime/score"
JSON = {"content-type": "application/json"}
CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


@pytest.fixture
async def judge(judges: Judges) -> RunningJudge:
    return await judges.start(ScriptedEngine(sums, fail=_broken))


def _broken(text: str) -> Exception | None:
    return EngineError("out of memory") if "broken" in text else None


async def sent(judge: RunningJudge, route: str, body: bytes, **params: Any) -> httpx.Response:
    return await judge.http.post(route, content=body, headers=JSON, params=params)


# Golden bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (
            b'{"query": ["1 + 2 It is \\\\boxed{3}.</s>"], "prompts": ["1 + 2"], "labels": ["42"]}',
            b'{"rewards":[1.0],"scores":[1.0],"extra_logs":{"labeled":[1.0],"vote_share":[0.75]}}',
        ),
        (
            b'{"query": ["1 + 2 \\\\boxed{4}"], "prompts": ["1 + 2"], "labels": [null]}',
            b'{"rewards":[0.0],"scores":[0.0],"extra_logs":{"labeled":[1.0],"vote_share":[0.75]}}',
        ),
        (
            b'{"query": ["split 1 \\\\boxed{1}"], "prompts": ["split 1"], "labels": [null]}',
            b'{"rewards":[0.0],"scores":[0.0],"extra_logs":{"labeled":[0.0],"vote_share":[0.5]}}',
        ),
        (
            b'{"query":["1 + 2 \\\\boxed{3}","5 \\\\boxed{5}"],"prompts":["1 + 2","5"],"labels":[1,{"a":2}]}',
            b'{"rewards":[1.0,1.0],"scores":[1.0,1.0],"extra_logs":{"labeled":[1.0,1.0],"vote_share":[0.75,0.75]}}',
        ),
        (
            b'{"query": [], "prompts": [], "labels": []}',
            b'{"rewards":[],"scores":[],"extra_logs":{"labeled":[],"vote_share":[]}}',
        ),
    ],
)
async def test_openrlhf_bytes(judge: RunningJudge, body: bytes, answer: bytes) -> None:
    response = await sent(judge, OPENRLHF, body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.content == answer


@pytest.mark.parametrize(
    ("body", "params", "answer"),
    [
        (b'{"prompt": "1 + 2", "response": "\\\\boxed{3}", "label": "2"}', {}, b"1.0"),
        (b'{"prompt": "1 + 2", "response": "\\\\boxed{4}", "label": null}', {}, b"0.0"),
        (b'{"prompt": "split 1", "response": "\\\\boxed{1}"}', {}, b"0.0"),
        (
            b'{"prompt": [{"role": "user", "content": "1 + 2"}], "response": "\\\\boxed{3}", "label": "2"}',
            {"reward_key": "score"},
            b'{"labeled":1.0,"vote_share":0.75,"score":1.0}',
        ),
    ],
)
async def test_slime_bytes(judge: RunningJudge, body: bytes, params: dict[str, str], answer: bytes) -> None:
    response = await sent(judge, SLIME, body, **params)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.content == answer


async def test_a_url_alone_carries_the_key_and_the_choices(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums), api_key="sesame")
    body = {"prompt": "split 1", "response": "\\boxed{1}", "label": None}
    url = judge.url.replace("://", "://any:sesame@") + f"{SLIME}?ties=first&samples=4&reward_key=score"
    async with httpx.AsyncClient() as http:
        answer = await http.post(url, json=body, timeout=30)
        assert answer.json() == {"labeled": 1.0, "vote_share": 0.5, "score": 1.0}
        assert (await http.post(f"{judge.url}{SLIME}", json=body)).status_code == 401
    assert [call.n for call in judge.engine.calls] == [4]


# Faults are statuses, never rewards ----------------------------------------------------------------------------------


async def test_without_a_label_an_error_if_chosen(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums), compat_on_unlabeled="error")
    body = b'{"prompt": "split 1", "response": "\\\\boxed{1}", "label": null}'
    answer = await sent(judge, SLIME, body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:corl:unlabeled")
    assert "'tie'" in answer.json()["detail"]
    assert (await sent(judge, SLIME, body, on_unlabeled="zero")).content == b"0.0"
    query = b'{"query": ["split 1 \\\\boxed{1}"], "prompts": ["split 1"], "labels": [null]}'
    assert (await sent(judge, OPENRLHF, query)).status_code == 422


async def test_a_broken_engine_is_a_502(judge: RunningJudge) -> None:
    answer = await sent(judge, SLIME, b'{"prompt": "broken", "response": "x"}')
    assert (answer.status_code, answer.json()["type"]) == (502, "urn:corl:engine-failed")
    query = b'{"query": ["1 x", "broken x"], "prompts": ["1", "broken"], "labels": [null, null]}'
    assert (await sent(judge, OPENRLHF, query)).status_code == 502


@pytest.mark.parametrize(
    ("route", "body", "params", "detail"),
    [
        (OPENRLHF, b'{"query": ["a"], "prompts": [], "labels": []}', {}, "1, 0 and 0 entries"),
        (OPENRLHF, b'{"query": ["b"], "prompts": ["a"], "labels": [1]}', {}, "query.0: does not hold its prompt"),
        (
            OPENRLHF,
            b'{"query": ["[INST] a [/INST] b"], "prompts": ["[INST] a [/INST]"], "labels": [1]}',
            {},
            "rendered",
        ),
        (OPENRLHF, b'{"query": ["a b"], "prompts": ["a"], "labels": ["p"]}', {"label": "problem_id"}, "cohort file"),
        (SLIME, b'{"prompt": "", "response": ""}', {}, "prompt"),
        (
            SLIME,
            b'{"prompt": [{"role": "tool", "content": "x"}], "response": ""}',
            {},
            "prompt: prompt.0.role is 'tool'",
        ),
        (SLIME, b'{"prompt": "a", "response": null}', {}, "response"),
        (SLIME, b'{"prompt": "a", "response": "b"}', {"sample": "3"}, "sample"),
        (SLIME, b'{"prompt": "a", "response": "b"}', {"samples": "1000"}, "policy.samples"),
        (SLIME, b"not json", {}, "JSON"),
    ],
)
async def test_what_is_wrong_is_named(
    judge: RunningJudge, route: str, body: bytes, params: dict[str, str], detail: str
) -> None:
    answer = await sent(judge, route, body, **params)
    assert answer.status_code == 422, answer.text
    assert detail in answer.json()["detail"]
    assert judge.engine.generated == 0


# Rendered prompts and problem ids ------------------------------------------------------------------------------------


async def test_a_rendered_prompt_is_asked_in_the_judges_own_template(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(sums), compat_template="chatml")
    prompt = (
        CHATML.format(role="system", content="Add. ")
        + CHATML.format(role="user", content="1 + 2 ")
        + "<|im_start|>assistant\n"
    )
    query = prompt + "It is \\boxed{3}.<|im_end|><|endoftext|>"
    answer = await judge.post(OPENRLHF, {"query": [query], "prompts": [prompt], "labels": [None]})
    assert answer["rewards"] == [1.0]
    [call] = judge.engine.calls
    assert [(part.role, part.content) for part in call.prompt] == [("system", "Add. "), ("user", "1 + 2 ")]  # type: ignore[union-attr]
    refused = await judge.post(OPENRLHF, {"query": ["1 x"], "prompts": ["1"], "labels": [None]}, expect=422)
    assert "compat_template 'chatml' does not fit" in refused["detail"]


async def test_a_label_may_be_a_problem_id_of_the_cohort_file(judges: Judges, tmp_path: Path) -> None:
    name = f"a{uuid.uuid4().hex[:8]}"
    problems = [
        {"problem_id": "p1", "problem": "1 + 2", "answer": "3"},
        {"problem_id": "p2", "problem": "3 + 4", "answer": "7"},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (tmp_path / "cohort.yaml").write_text(
        f"name: c\nmembers:\n  {name}: {{model: org/a}}\n  b: {{model: org/b}}\n"
        "problems: {train: {path: train.jsonl}}\nprompt: {template: 'Question: {problem} End'}\n"
    )
    judge = await judges.start(ScriptedEngine(sums), member=name, cohort_file=tmp_path / "cohort.yaml")
    body = {"query": ["<s>anything \\boxed{7}"], "prompts": ["anything"], "labels": ["p2"]}
    answer = await judge.http.post(OPENRLHF, json=body, params={"label": "problem_id"})
    assert answer.json()["rewards"] == [1.0]
    assert "Question: 3 + 4 End" in decode(judge.engine.calls[0].prompt_token_ids)
    body["labels"] = ["p3"]
    answer = await judge.http.post(OPENRLHF, json=body, params={"label": "problem_id"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "label")


# Load ----------------------------------------------------------------------------------------------------------------


async def test_two_thousand_callers_at_once_are_one_vote_a_problem(judges: Judges) -> None:
    engine = ScriptedEngine(sums)
    judge = await judges.start(engine)
    engine.gate.clear()
    problems, rollouts = 250, 8
    asked = [(problem, rollout) for rollout in range(rollouts) for problem in range(problems)]
    calls = [asyncio.create_task(_alone(judge, *which)) for which in asked]
    await until(lambda: judge.service.open["scores"].count == len(asked), deadline_s=90)
    engine.gate.set()
    answers = await asyncio.gather(*calls)
    assert [status for status, _ in answers] == [200] * len(asked)
    assert [reward for _, reward in answers] == [1.0 if rollout % 4 == 1 else 0.0 for _, rollout in asked]
    assert len(engine.calls) == problems
    assert engine.generated == problems * 8


async def _alone(judge: RunningJudge, problem: int, rollout: int) -> tuple[int, float]:
    """One sample over a connection of its own, as a process of its own would send it."""
    body = json.dumps({"prompt": f"1 + {problem}", "response": f"\\boxed{{{problem + rollout % 4}}}", "label": None})
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(judge.url).port)
    head = f"POST {SLIME} HTTP/1.1\r\nhost: judge\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    head, _, answer = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), float(answer) if head.split()[1] == "200" else -1.0


async def test_a_saturated_judge_says_so_and_nothing_is_done_twice(judges: Judges) -> None:
    engine = ScriptedEngine(sums)
    judge = await judges.start(engine, max_queued_votes=2, max_problems_in_flight=1, compat_deadline_s=2.0)
    engine.gate.clear()
    bodies = [{"prompt": f"1 + {i}", "response": f"\\boxed{{{i + 1}}}"} for i in range(8)]
    answers = await asyncio.gather(*(judge.http.post(SLIME, json=body) for body in bodies))
    assert {answer.status_code for answer in answers} == {429, 503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    engine.gate.set()
    for _ in range(5):
        retried = [await judge.http.post(SLIME, json=body) for body in bodies]
        if all(answer.status_code == 200 for answer in retried):
            break
    assert [answer.text for answer in retried] == ["1.0"] * 8
    assert engine.generated == 8 * 8


async def test_more_open_requests_than_the_limit_are_refused_at_once(judges: Judges) -> None:
    engine = ScriptedEngine(sums)
    judge = await judges.start(engine, max_open_requests=3)
    engine.gate.clear()
    body = {"prompt": "1 + 2", "response": "\\boxed{3}"}
    held = [asyncio.create_task(judge.http.post(SLIME, json=body)) for _ in range(3)]
    await until(lambda: judge.service.open["scores"].count == 3)
    refused = await judge.http.post(SLIME, json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    engine.gate.set()
    assert [(await answer).text for answer in held] == ["1.0"] * 3


async def test_callers_that_hang_up_come_back_to_a_filed_vote(judges: Judges) -> None:
    engine = ScriptedEngine(sums)
    judge = await judges.start(engine)
    engine.gate.clear()
    body = {"prompt": "1 + 2", "response": "\\boxed{3}"}
    gone = asyncio.create_task(judge.http.post(SLIME, json=body))
    await until(lambda: engine.running == 1)
    gone.cancel()
    await until(lambda: judge.service.open["scores"].count == 0)
    engine.gate.set()
    assert (await judge.http.post(SLIME, json=body)).text == "1.0"
    assert engine.generated == 8


def test_a_judge_process_may_hold_more_connections_than_the_usual_limit() -> None:
    code = (
        "import resource\n"
        "from corl_judge.serve import allow_connections\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "allow_connections()\n"
        "soft, same = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "assert same == hard, (same, hard)\n"
        "assert soft == (65536 if hard == resource.RLIM_INFINITY else min(65536, hard)), soft\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
