"""The openai engine against an endpoint over real HTTP, alone and behind a judge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from corl_judge.engines import make_engine
from corl_judge.engines.base import EngineError, GenerateRequest, PromptRejected, WeightsRejected
from corl_judge.engines.openai import OpenAIEngine
from corl_judge.settings import Settings
from pydantic import ValidationError

from corl.wire import Message, Sampling
from tests.engines.openai_stub import Stub, serving
from tests.judge.harness import Judges, item, judges_of, publish, rollouts, scores


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub()) as endpoint:
        yield endpoint


def engine_of(stub: Stub, model: str = "org/remote", **options: Any) -> OpenAIEngine:
    engine = make_engine("openai", model, options={"base_url": stub.url, "timeout_s": 30, **options})
    assert isinstance(engine, OpenAIEngine)
    return engine


def asked(engine: OpenAIEngine, n: int = 4, prompt: Any = "2 + 2", **sampling: Any) -> GenerateRequest:
    return GenerateRequest(prompt, engine.encode(prompt), n, Sampling(**{"max_tokens": 32, **sampling}), 7)


async def test_one_request_gives_n_samples(stub: Stub) -> None:
    engine = engine_of(stub, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    facts = await engine.start()
    assert (facts.name, facts.token_ids) == ("openai", False)
    chat = [Message(role="system", content="Add."), Message(role="user", content="2 + 2")]
    samples = await engine.generate(asked(engine, prompt=chat, top_p=0.9, top_k=5))
    assert [sample.text for sample in samples] == ["\\boxed{4}"] * 3 + ["\\boxed{5}"]
    assert stub.requests == [
        {
            "model": "org/remote",
            "messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2"}],
            "n": 4,
            "max_tokens": 32,
            "temperature": 1.0,
            "seed": 7,
            "top_p": 0.9,
            "top_k": 5,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]
    usage = engine.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.failures) == (11, 28, 0)
    await engine.probe()
    await engine.stop()


@pytest.mark.parametrize("options", [{"n_per_request": 1}, {}])
async def test_endpoints_that_cap_n_are_asked_more_often_with_other_seeds(stub: Stub, options: dict[str, Any]) -> None:
    stub.most_choices = 1
    engine = engine_of(stub, **options)
    await engine.start()
    samples = await engine.generate(asked(engine))
    assert sorted(sample.text for sample in samples) == ["\\boxed{4}"] * 3 + ["\\boxed{5}"]
    assert {request["seed"] for request in stub.requests} == {7, 8, 9, 10}
    await engine.stop()


async def test_faults_that_pass_are_tried_again(stub: Stub) -> None:
    engine = engine_of(stub, retries=4)
    await engine.start()
    stub.faults = [(429, {"error": "slow down"}, {"retry-after": "1"}), (503, {}, {})]
    stub.drops = 1
    assert len(await engine.generate(asked(engine))) == 4
    assert engine.usage().failures == 3
    await engine.stop()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ((503, {}, {}), EngineError, "answers 503"),
        ((400, {"error": {"message": "context length"}}, {}), PromptRejected, "context length"),
        ((404, {"error": "no model"}, {}), EngineError, r"answers 404.*no model"),
        ((200, b"<html>", {}), EngineError, "gave no chat completion: <html>"),
        ((200, {"choices": []}, {}), EngineError, "gave no choices"),
        ((200, {"choices": [{"message": {"content": 3}}]}, {}), EngineError, "gave no chat completion"),
    ],
)
async def test_faults_that_stay_are_errors(stub: Stub, fault: Any, error: type[Exception], message: str) -> None:
    engine = engine_of(stub, retries=0)
    await engine.start()
    stub.faults = [fault]
    with pytest.raises(error, match=message):
        await engine.generate(asked(engine))
    await engine.stop()


async def test_what_cannot_work_is_said_at_the_start(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="no model 'org/other': it serves org/remote"):
        await engine_of(stub, "org/other").start()
    stub.key = "sesame"
    with pytest.raises(EngineError, match=r"refuses the key .401.: set MY_KEY"):
        await engine_of(stub, api_key_env="MY_KEY").start()
    monkeypatch.setenv("MY_KEY", "sesame")
    engine = engine_of(stub, api_key_env="MY_KEY")
    await engine.start()
    await engine.stop()
    stub.models = None
    await engine_of(stub, "org/other", api_key_env="MY_KEY").start()
    stub.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EngineError, match="cannot be reached after 1 tries"):
        await engine_of(stub, retries=0).start()
    with pytest.raises(EngineError, match=r"engine_options.base_url = 'here'"):
        make_engine("openai", "m", options={"base_url": "here"})
    with pytest.raises(EngineError, match="--model"):
        make_engine("openai", "", options={"base_url": "http://h/v1"})
    with pytest.raises(ValidationError, match="frozen is false"):
        Settings(engine="openai", model="m", frozen=False)
    assert Settings(engine="openai", model="m").frozen


def test_weights_are_named_by_address_and_model_and_stay() -> None:
    def digest(url: str, model: str) -> str:
        return OpenAIEngine(model, {"base_url": url}).version.digest

    assert digest("http://h/v1", "a") == digest("http://h/v1/", "a")
    assert len({digest("http://h/v1", "a"), digest("http://h/v1", "b"), digest("http://g/v1", "a")}) == 3
    engine = OpenAIEngine("a", {"base_url": "http://h/v1"})
    with pytest.raises(WeightsRejected, match="cannot be replaced"):
        engine.check_weights(None)  # type: ignore[arg-type]
    with pytest.raises(PromptRejected, match="not token ids"):
        engine.encode([1, 2])


@pytest.fixture
async def judges(redis_url: str) -> AsyncIterator[Judges]:
    async with judges_of(redis_url) as started:
        yield started


async def test_as_a_judge_it_votes_is_metered_and_refuses_the_rest(judges: Judges, stub: Stub, tmp_path: Path) -> None:
    engine = engine_of(stub)
    judge = await judges.start(engine, frozen=True, weights=tmp_path)  # type: ignore[arg-type]
    body = scores(item("p", "\\boxed{4}", "\\boxed{5}"), policy={"samples": 8})
    answer = await judge.post("/v1/scores", body)
    assert answer["items"][0]["rewards"] == [1.0, 0.0]
    assert (answer["items"][0]["vote"]["count"], answer["items"][0]["vote"]["total"]) == (6, 8)
    assert answer["weights"]["digest"] == engine.version.digest
    assert (await judge.post("/v1/scores", body))["items"] == answer["items"]
    assert len(stub.requests) == 1

    metrics = (await judge.http.get("/metrics")).text
    assert 'corl_remote_tokens_total{kind="prompt"} 11.0' in metrics
    assert 'corl_remote_tokens_total{kind="completion"} 56.0' in metrics
    assert 'corl_remote_requests_total{outcome="answered"} 2.0' in metrics

    refused = await judge.post("/v1/rollouts", rollouts("p"), expect=422)
    assert "whose token ids are unknown" in refused["detail"]
    update = publish(tmp_path, judge.settings.member, 1)
    assert "frozen" in (await judge.put("/v1/weights", update, expect=409))["detail"]


async def test_an_endpoint_that_refuses_a_prompt_fails_that_item_alone(judges: Judges, stub: Stub) -> None:
    judge = await judges.start(engine_of(stub), frozen=True)  # type: ignore[arg-type]
    stub.faults = [(400, {"error": "too long"}, {})]
    answer = await judge.post("/v1/scores", scores(item("p", "\\boxed{4}")))
    assert answer["items"][0]["status"] == "failed"
    assert "too long" in answer["items"][0]["failure"]["message"]
    assert (await judge.post("/v1/scores", scores(item("q", "\\boxed{4}"))))["items"][0]["rewards"] == [1.0]
