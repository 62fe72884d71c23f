"""`POST /v1/rollouts`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from corl_judge.engines.base import EngineError, Sample

from tests.judge.harness import Judges, item, publish, rollouts, scores, until
from tests.scripted import EOS, ScriptedEngine, boxed, encode_text


async def test_completions_carry_tokens_logprobs_text_answer_and_the_groups_own_vote(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "5")))
    answer = await judge.post("/v1/rollouts", rollouts("p1", "p2", n=3, run="r", step=7))
    assert (answer["member"], answer["run"], answer["step"]) == (judge.settings.member, "r", 7)
    assert [p["problem_id"] for p in answer["problems"]] == ["p1", "p2"]
    problem = answer["problems"][0]
    assert problem["prompt_token_ids"] == judge.engine.encode("problem p1")
    first = problem["completions"][0]
    assert first["text"] == "So it is \\boxed{4}."
    assert first["token_ids"] == [*encode_text(first["text"]), EOS]
    assert first["logprobs"] == [-0.25 - (token % 7) / 8 for token in first["token_ids"]]
    assert [c["answer"] for c in problem["completions"]] == ["4", "4", "5"]
    assert problem["vote"]["status"] == "ok"
    assert (problem["vote"]["answer"], problem["vote"]["count"], problem["vote"]["total"]) == ("4", 2, 3)
    assert problem["vote"]["source"] == "rollout"
    assert answer["weights"] == problem["weights"] == {"incarnation": 0, "version": 0, "digest": "scripted-0"}


async def test_a_completion_cut_by_max_tokens_says_so(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("123456")))
    body = rollouts("p1", n=1, run="r", step=0)
    body["sampling"]["max_tokens"] = 5
    [problem] = (await judge.post("/v1/rollouts", body))["problems"]
    [completion] = problem["completions"]
    assert completion["finish_reason"] == "length"
    assert len(completion["token_ids"]) == len(completion["logprobs"]) == 5
    assert completion["answer"] is None


async def test_token_ids_and_messages_are_prompts_too(judges: Judges) -> None:
    judge = await judges.start()
    body = rollouts("ids", "chat", n=2)
    body["problems"][0]["prompt"] = encode_text("hello")
    body["problems"][1]["prompt"] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    first, second = (await judge.post("/v1/rollouts", body))["problems"]
    assert first["prompt_token_ids"] == encode_text("hello")
    assert second["prompt_token_ids"] == [257, *encode_text("be brief"), 258, *encode_text("hello"), 260]


async def test_an_exact_replay_generates_nothing_and_is_the_same_answer(judges: Judges) -> None:
    judge = await judges.start()
    body = rollouts("p1", "p2", run="r", step=3)
    first = await judge.post("/v1/rollouts", body)
    generated = judge.engine.generated
    assert await judge.post("/v1/rollouts", body) == first
    assert judge.engine.generated == generated == 8


async def test_anything_that_makes_it_other_work_generates_anew(judges: Judges) -> None:
    judge = await judges.start()
    body = rollouts("p1", run="r", step=3)
    await judge.post("/v1/rollouts", body)
    others: list[dict[str, Any]] = [{"run": "r2"}, {"step": 4}, {"n": 5}, {"purpose": "eval"}, {"sampling": {}}]
    for number, other in enumerate(others):
        await judge.post("/v1/rollouts", {**body, **other})
        assert len(judge.engine.calls) == number + 2, other


async def test_seeds_differ_by_problem_step_member_and_purpose_and_repeat_across_runs(judges: Judges) -> None:
    judge = await judges.start()
    for body in (
        rollouts("p1", "p2", run="r", step=0),
        rollouts("p1", run="r", step=1),
        rollouts("p1", run="r", step=0, purpose="eval"),
    ):
        await judge.post("/v1/rollouts", body)
    other = await judges.start()
    await other.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    again = await judges.start(member=judge.settings.member)
    await again.post("/v1/rollouts", rollouts("p1", run="another", step=0))
    seeds = [call.seed for call in judge.engine.calls]
    assert len({*seeds, other.engine.calls[0].seed}) == 5
    started = [*judge.engine.calls[4:], *again.engine.calls]
    assert started[0].seed == next(c.seed for c in judge.engine.calls if c.prompt == "problem p1")


async def test_askers_at_the_same_time_share_one_sampling(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    body = rollouts("p1", run="r", step=0)
    asked = [asyncio.create_task(judge.post("/v1/rollouts", body)) for _ in range(20)]
    await until(lambda: judge.engine.running == 1)
    judge.engine.gate.set()
    answers = await asyncio.gather(*asked)
    assert all(answer == answers[0] for answer in answers)
    assert len(judge.engine.calls) == 1


async def test_an_asker_that_hangs_up_does_not_end_work_that_others_wait_for(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    body = rollouts("p1", run="r", step=0)
    judge.http.headers["x-request-id"] = "the-same"  # names that clients choose are not who waits
    leaving = asyncio.create_task(judge.post("/v1/rollouts", body))
    staying = asyncio.create_task(judge.post("/v1/rollouts", body))
    await until(lambda: judge.engine.running == 1 and judge.service.open["rollouts"].count == 2)
    leaving.cancel()
    await until(lambda: judge.service.open["rollouts"].count == 1)
    judge.engine.gate.set()
    assert (await staying)["problems"][0]["completions"]
    assert judge.engine.cancelled == 0


async def test_work_stops_with_its_last_asker(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    asked = asyncio.create_task(judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))
    await until(lambda: judge.engine.running == 1)
    asked.cancel()
    await until(lambda: judge.engine.cancelled == 1)
    judge.engine.gate.set()
    assert (await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0)))["problems"][0]["completions"]


async def test_min_version_is_held_for_until_it_is_published(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    asked = asyncio.create_task(
        judge.post("/v1/rollouts", rollouts("p1", run="r", step=1, min_version=1, incarnation=1))
    )
    await until(lambda: judge.service.open["rollouts"].count == 1)
    update = publish(tmp_path, judge.settings.member, 1)
    await judge.put("/v1/weights", update, expect=202)
    assert (await asked)["weights"] == {"incarnation": 1, "version": 1, "digest": update["digest"]}


async def test_min_version_that_never_comes_is_a_503_at_the_deadline(judges: Judges) -> None:
    judge = await judges.start()
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p1", run="r", min_version=3, deadline_s=0.3))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "min_version 3" in answer.json()["detail"]
    assert judge.engine.generated == 0


async def test_weights_of_an_earlier_trainer_are_not_those_that_a_new_one_means(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(weights=tmp_path)
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 5, incarnation=1), expect=202)
    lease = await judge.put("/v1/trainer", {"run": "r", "step": 2, "ttl_s": 30})
    assert lease["incarnation"] == 2
    body = rollouts("p1", run="r", step=2, min_version=2, incarnation=2, deadline_s=0.3)
    assert (await judge.http.post("/v1/rollouts", json=body)).status_code == 503
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 2, incarnation=2), expect=202)
    answer = await judge.post("/v1/rollouts", {**body, "deadline_s": 30})
    assert (answer["weights"]["incarnation"], answer["weights"]["version"]) == (2, 2)


async def test_a_deadline_is_a_503_and_what_was_done_is_kept(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.gate.clear()
    body = rollouts("p1", run="r", step=0, deadline_s=0.4)
    answer = await judge.http.post("/v1/rollouts", json=body)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    judge.engine.gate.set()
    await judge.post("/v1/rollouts", {**body, "deadline_s": 30})
    assert len(judge.engine.calls) == 1


async def test_work_that_always_fails_is_an_error_with_the_cause_and_a_retry_is_clean(judges: Judges) -> None:
    judge = await judges.start()
    judge.engine.fail = lambda prompt: EngineError("cuda: an illegal memory access") if "p1" in prompt else None
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p1", "p2", run="r", step=0))
    assert answer.status_code == 502
    assert "illegal memory access" in answer.json()["detail"]
    assert "'p1'" in answer.json()["detail"]
    judge.engine.fail = None
    assert len((await judge.post("/v1/rollouts", rollouts("p1", "p2", run="r", step=0)))["problems"]) == 2


async def test_an_engine_that_answers_with_nan_or_missing_rows_is_not_believed(judges: Judges) -> None:
    judge = await judges.start()

    async def broken(request: object) -> list[Sample]:
        return [Sample([65, EOS], [float("nan"), -1.0], "A", "stop")] * 4

    judge.engine.generate = broken  # type: ignore[method-assign]
    answer = await judge.http.post("/v1/rollouts", json=rollouts("p1", run="r", step=0))
    assert answer.status_code == 502
    assert "not finite" in answer.json()["detail"]
    scored = await judge.post("/v1/scores", scores(item("p1", "\\boxed{4}"), run="r", step=0))
    assert scored["items"][0]["status"] == "failed"


async def test_eval_rollouts_are_never_filed_as_a_vote(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0, purpose="eval"))
    judge.engine.script = boxed("5")
    [scored] = (await judge.post("/v1/scores", scores(item("p1", "\\boxed{5}"), run="r", step=0)))["items"]
    assert scored["vote"]["source"] == "fresh"
    assert scored["rewards"] == [1.0]


async def test_prompts_that_cannot_run_are_refused_by_name(judges: Judges) -> None:
    judge = await judges.start()
    wrong: list[tuple[str | list[int], str]] = [
        ("", "problems.0.prompt"),
        ([999_999], "problems.0.prompt"),
        ("x" * 5000, "problems.0.prompt"),
        ("x" * 4050, "sampling.max_tokens"),
    ]
    for prompt, field in wrong:
        body = rollouts("p1")
        body["problems"][0]["prompt"] = prompt
        answer = await judge.http.post("/v1/rollouts", json=body)
        assert answer.status_code == 422
        assert any(error["field"].startswith(field) for error in answer.json()["errors"]), answer.text
    assert judge.engine.generated == 0
