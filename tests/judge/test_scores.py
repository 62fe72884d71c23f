"""`POST /v1/scores`: statuses, sources, single flight, policies at read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from corl_judge.engines.base import EngineError

from tests.judge.harness import Judges, RunningJudge, item, publish, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


async def one(judge: RunningJudge, body: dict[str, Any]) -> dict[str, Any]:
    [scored] = (await judge.post("/v1/scores", body))["items"]
    return scored  # type: ignore[no-any-return]


async def test_filed_answers_are_used_and_nothing_is_generated(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "5")))
    await judge.post("/v1/rollouts", rollouts("p1", n=3, run="r", step=7))
    generated = judge.engine.generated
    answer = await judge.post("/v1/scores", scores(item("p1", "\\boxed{4}", "\\boxed{5}", "no idea"), run="r", step=7))
    assert (answer["member"], answer["run"], answer["step"]) == (judge.settings.member, "r", 7)
    [scored] = answer["items"]
    assert scored["status"] == "scored"
    assert scored["rewards"] == [1.0, 0.0, 0.0]
    assert scored["answers"] == ["4", "5", None]
    assert scored["vote"]["source"] == "rollout"
    assert (scored["vote"]["count"], scored["vote"]["parsed"], scored["vote"]["total"]) == (2, 3, 3)
    assert scored["vote"]["histogram"] is None
    assert judge.engine.generated == generated


async def test_without_a_run_the_vote_is_sampled_once_for_all_askers_and_is_fresh(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "4", "5")))
    judge.engine.gate.clear()
    asked = [
        asyncio.create_task(one(judge, scores(item("p1", "\\boxed{4}"), policy={"samples": 4}))) for _ in range(12)
    ]
    await until(lambda: judge.engine.running == 1 and judge.service.open["scores"].count == 12)
    judge.engine.gate.set()
    answers = await asyncio.gather(*asked)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["vote"]["source"] == "fresh"
    assert answers[0]["rewards"] == [1.0]
    assert judge.engine.generated == 4


async def test_without_a_run_the_callers_id_is_only_echoed(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    first = {**item("mine", "\\boxed{4}"), "prompt": "2 + 2"}
    second = {**item("yours", "\\boxed{4}"), "prompt": "2 + 2"}
    third = {**item("mine", "\\boxed{4}"), "prompt": "3 + 3"}
    assert (await one(judge, scores(first)))["problem_id"] == "mine"
    assert (await one(judge, scores(second)))["problem_id"] == "yours"
    assert len(judge.engine.calls) == 1
    await one(judge, scores(third))
    await one(judge, scores({**first, "task": "text"}))
    await one(judge, scores(first, policy={"samples": 3}))
    assert len(judge.engine.calls) == 4


async def test_new_weights_make_a_new_vote_without_a_run(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), weights=tmp_path)
    await one(judge, scores(item("p1", "\\boxed{4}")))
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 1), expect=202)
    await judge.get("/v1/weights?version=1&wait_s=30")
    scored = await one(judge, scores(item("p1", "\\boxed{4}")))
    assert scored["vote"]["weights"]["version"] == 1
    assert len(judge.engine.calls) == 2


POLICIES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "scored", "ok"),
    ({"threshold": 0.6}, "scored", "ok"),
    ({"threshold": 0.61}, "unlabeled", "weak"),
    ({"min_parsed": 6}, "unlabeled", "weak"),
]


async def test_each_asker_has_its_own_policy_over_the_same_filed_answers(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "4", "5", "6")))
    await judge.post("/v1/rollouts", rollouts("p1", n=5, run="r", step=0))
    for policy, status, vote in POLICIES:
        scored = await one(judge, scores(item("p1", "\\boxed{4}", "\\boxed{5}"), run="r", step=0, policy=policy))
        assert (scored["status"], scored["vote"]["status"]) == (status, vote), policy
        assert scored["rewards"] == ([1.0, 0.0] if status == "scored" else None)
        assert scored["answers"] == ["4", "5"]


async def test_a_tie_is_no_label_unless_the_asker_takes_the_first(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("5", "4")))
    await judge.post("/v1/rollouts", rollouts("p1", n=4, run="r", step=0))
    for ties, status, rewards in (("abstain", "unlabeled", None), ("first", "scored", [0.0, 1.0])):
        body = scores(item("p1", "\\boxed{4}", "\\boxed{5}"), run="r", step=0, policy={"ties": ties})
        scored = await one(judge, body)
        assert (scored["status"], scored["rewards"]) == (status, rewards)


async def test_no_answer_at_all_is_unlabeled_and_not_a_zero(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(lambda _p, n, _s: ["I do not know."] * n))
    scored = await one(judge, scores(item("p1", "\\boxed{4}")))
    assert (scored["status"], scored["rewards"], scored["vote"]["status"]) == ("unlabeled", None, "none")


async def test_one_bad_item_never_fails_the_batch(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    judge.engine.fail = lambda prompt: EngineError("out of memory") if "bad" in prompt else None
    body = scores(
        item("good", "\\boxed{4}"),
        item("bad", "\\boxed{4}"),
        {**item("long", "\\boxed{4}"), "prompt": "x" * 5000},
        {**item("image", "\\boxed{4}"), "prompt": [{"role": "user", "content": [_image()]}]},
        item("empty"),
    )
    items = {i["id"]: i for i in (await judge.post("/v1/scores", body))["items"]}
    assert items["good"]["rewards"] == [1.0]
    assert items["empty"]["rewards"] == []
    for name, kind, words in (
        ("bad", "engine", "out of memory"),
        ("long", "invalid", "5002 tokens"),
        ("image", "invalid", "images"),
    ):
        assert items[name]["status"] == "failed"
        assert items[name]["rewards"] is None
        assert items[name]["failure"]["kind"] == kind
        assert words in items[name]["failure"]["message"]
    judge.engine.fail = None
    assert (await one(judge, scores(item("bad", "\\boxed{4}"))))["status"] == "scored"


def _image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


async def test_the_first_writer_wins_and_all_later_askers_read_it(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    fresh = await one(judge, scores(item("p1", "\\boxed{4}"), run="r", step=0))
    assert fresh["vote"]["source"] == "fresh"
    judge.engine.script = boxed("9")
    own = await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    assert own["problems"][0]["vote"]["answer"] == "9"
    later = await one(judge, scores(item("p1", "\\boxed{4}"), run="r", step=0))
    assert later["vote"] == fresh["vote"]


async def test_askers_of_a_step_share_a_vote_whatever_samples_each_would_take(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    judge.engine.gate.clear()
    asked = [
        asyncio.create_task(one(judge, scores(item("p1", "4"), run="r", step=0, policy={"samples": n})))
        for n in (3, 5, 7)
    ]
    await until(lambda: judge.service.open["scores"].count == 3 and judge.engine.running == 1)
    judge.engine.gate.set()
    votes = [scored["vote"] for scored in await asyncio.gather(*asked)]
    assert votes[0] == votes[1] == votes[2]
    assert len(judge.engine.calls) == 1


async def test_the_histogram_comes_when_asked_for(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4", "4", "5", "0.5")))
    await judge.post("/v1/rollouts", rollouts("p1", n=8, run="r", step=0))
    scored = await one(judge, scores(item("p1", "\\boxed{4}"), run="r", step=0, histogram=True))
    counts = {entry["answer"]: entry["count"] for entry in scored["vote"]["histogram"]}
    assert counts == {"4": 4, "5": 2, "0.5": 2}


async def test_choices_are_judged_with_their_options(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(lambda _p, n, _s: ["The answer is (B)."] * n))
    asked = {**item("p1", "The answer is (B).", "The answer is (A)."), "task": "choice", "options": ["A", "B", "C"]}
    assert (await one(judge, scores(asked)))["rewards"] == [1.0, 0.0]


async def test_options_that_are_no_options_fail_their_item_alone(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    bad = {**item("bad", "A"), "task": "choice", "options": ["A", "A"]}
    items = {i["id"]: i for i in (await judge.post("/v1/scores", scores(bad, item("good", "\\boxed{4}"))))["items"]}
    assert items["good"]["status"] == "scored"
    assert items["bad"]["status"] == "failed"
    assert items["bad"]["rewards"] is None


WRONG: list[dict[str, Any]] = [
    {"items": []},
    {"items": [item("p1", "a"), item("p1", "b")]},
    {"step": 3},
    {"polcy": {}},
    {"policy": {"threshold": 1.5}},
    {"policy": {"samples": 10_000}},
    {"sampling": {"temperature": 0.0}},
    {"items": [{**item("p1", "a"), "prompt": [1, 2, 3]}]},
]


async def test_wrong_requests_are_422_and_name_what_is_wrong(judges: Judges) -> None:
    judge = await judges.start()
    for change in WRONG:
        answer = await judge.http.post("/v1/scores", json={**scores(item("p1", "x")), **change})
        assert answer.status_code == 422, (change, answer.text)
        body = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert body["type"] == "urn:corl:invalid"
        assert body["errors"][0]["message"]
    assert "another member's tokenizer" in body["detail"]
    assert judge.engine.generated == 0


async def test_scores_of_filed_votes_are_served_during_a_reload(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), weights=tmp_path)
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    judge.engine.load_gate.clear()
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 1), expect=202)
    await until(lambda: judge.service.replica.state == "loading")
    scored = await one(judge, scores(item("p1", "\\boxed{4}"), run="r", step=0))
    assert scored["rewards"] == [1.0]
    assert judge.service.replica.state == "loading"


async def test_ten_thousand_completions_do_not_stall_other_requests(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    long = "Let us see. " * 40 + "So it is \\boxed{\\frac{8}{2}}."
    big = asyncio.create_task(judge.post("/v1/scores", scores(item("p1", *[long] * 10_000), run="r", step=0)))
    gaps = []
    loop = asyncio.get_running_loop()
    while not big.done():
        before = loop.time()
        assert (await judge.http.get("/livez")).status_code == 200
        gaps.append(loop.time() - before)
    [scored] = (await big)["items"]
    assert scored["rewards"] == [1.0] * 10_000
    assert len(gaps) > 3  # the probes were answered while it was judged
