"""Whom a judge waits for, and for how long (the wait rule); and the age of votes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.judge.harness import Judges, RunningJudge, item, publish, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed

WAIT = {"wait_s": 60.0}


def ask(judge: RunningJudge, step: int, policy: dict[str, Any], *problems: str) -> asyncio.Task[dict[str, Any]]:
    items = [item(p, "\\boxed{4}") for p in problems or ("p1",)]
    return asyncio.create_task(judge.post("/v1/scores", scores(*items, run="r", step=step, policy=policy)))


async def lease(judge: RunningJudge, step: int, ttl_s: float = 60.0, incarnation: int | None = None) -> int:
    body = {"run": "r", "step": step, "ttl_s": ttl_s, "incarnation": incarnation}
    return int((await judge.put("/v1/trainer", body))["incarnation"])


async def waiting(judge: RunningJudge) -> None:
    """A score request waits for a vote and nothing is sampled for it."""
    await until(lambda: judge.service.book.watched > 0)
    assert judge.engine.calls == []


async def test_waits_for_a_live_trainer_that_is_close_and_takes_its_rollouts(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=6)
    asked = ask(judge, 7, {**WAIT, "max_lag": 1}, "p1", "p2")
    await waiting(judge)
    await judge.post("/v1/rollouts", rollouts("p1", "p2", run="r", step=7))
    answer = await asked
    assert [i["vote"]["source"] for i in answer["items"]] == ["rollout", "rollout"]
    assert answer["waited_s"] > 0
    assert judge.engine.generated == 8  # the rollouts alone: not one token more


async def test_never_waits_without_wait_s(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=7)
    assert (await ask(judge, 7, {}))["items"][0]["vote"]["source"] == "fresh"


async def test_never_waits_for_a_frozen_member(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), frozen=True)
    answer = await ask(judge, 7, {**WAIT, "max_lag": 0})
    assert answer["items"][0]["status"] == "scored"
    assert answer["items"][0]["vote"]["source"] == "fresh"
    assert answer["waited_s"] == 0


async def test_a_frozen_member_has_no_trainer_and_takes_no_weights(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(frozen=True, weights=tmp_path)
    await judge.put("/v1/trainer", {"run": "r", "step": 0, "ttl_s": 30}, expect=409)
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 1), expect=409)


@pytest.mark.parametrize(
    ("at", "max_lag"), [(5, 1), (3, None), (8, 1), (8, None)], ids=["behind", "behind any", "past", "past any"]
)
async def test_never_waits_for_a_trainer_that_is_far_behind_or_past_the_step(
    judges: Judges, at: int, max_lag: int | None
) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=at)
    step = 40 if max_lag is None and at < 7 else 7
    answer = await ask(judge, step, {**WAIT, "max_lag": max_lag})
    assert judge.engine.generated == (8 if max_lag is None else 0)
    assert answer["items"][0]["status"] == ("scored" if max_lag is None else "unlabeled")


async def test_stops_waiting_when_the_lease_lapses(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=7, ttl_s=1.0)
    asked = ask(judge, 7, WAIT)
    await waiting(judge)
    assert (await asked)["items"][0]["vote"]["source"] == "fresh"


async def test_stops_waiting_at_wait_s_though_the_trainer_lives(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=7)
    answer = await ask(judge, 7, {"wait_s": 0.5})
    assert answer["items"][0]["vote"]["source"] == "fresh"
    assert answer["waited_s"] >= 0.5


async def test_waits_for_a_trainer_that_was_never_seen_until_start_wait_is_over(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), start_wait_s=1.0)
    asked = ask(judge, 0, WAIT)
    await waiting(judge)
    assert (await asked)["items"][0]["vote"]["source"] == "fresh"
    # It has passed for this run: nobody waits again.
    assert (await ask(judge, 1, WAIT, "p2"))["waited_s"] < 0.5


async def test_a_trainer_that_comes_within_start_wait_is_waited_for(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), start_wait_s=60.0)
    asked = ask(judge, 0, WAIT)
    await waiting(judge)
    await lease(judge, step=0)
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    assert (await asked)["items"][0]["vote"]["source"] == "rollout"


async def test_every_waiter_is_resolved_though_some_votes_never_come(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=0, ttl_s=2.0)
    asked = [ask(judge, 0, WAIT, "p1", "p2") for _ in range(5)]
    await waiting(judge)
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))
    for answer in await asyncio.gather(*asked):
        assert [i["vote"]["source"] for i in answer["items"]] == ["rollout", "fresh"]
    assert judge.engine.generated == 4 + 8


async def test_a_waiter_that_hangs_up_is_forgotten(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await lease(judge, step=7)
    asked = ask(judge, 7, WAIT)
    await waiting(judge)
    asked.cancel()
    await until(lambda: judge.service.book.watched == 0 and judge.service.open["scores"].count == 0)
    assert judge.engine.calls == []


# Age of votes --------------------------------------------------------------------------------------------------------


async def test_a_filed_vote_that_is_too_old_is_sampled_anew_where_the_present_weights_would_do(
    judges: Judges, tmp_path: Path
) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")), weights=tmp_path)
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=5))  # filed with version 0
    await judge.put("/v1/weights", publish(tmp_path, judge.settings.member, 4), expect=202)
    await judge.get("/v1/weights?version=4&wait_s=30")
    [any_age] = (await ask(judge, 5, {}))["items"]
    assert any_age["vote"]["weights"]["version"] == 0
    for _ in range(2):
        [young] = (await ask(judge, 5, {"max_lag": 1}))["items"]
        assert young["status"] == "scored"
        assert (young["vote"]["source"], young["vote"]["weights"]["version"]) == ("fresh", 4)
    assert len(judge.engine.calls) == 2
    [again] = (await ask(judge, 5, {}))["items"]
    assert again["vote"] == any_age["vote"]  # the step's own vote is as it was


async def test_weights_too_old_for_the_asker_give_no_label_and_cost_no_token(judges: Judges) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    [item_] = (await ask(judge, 5, {"max_lag": 2}))["items"]
    assert (item_["status"], item_["rewards"], item_["vote"]["status"]) == ("unlabeled", None, "none")
    assert judge.engine.calls == []
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=5))
    [filed] = (await ask(judge, 5, {"max_lag": 2}))["items"]
    assert (filed["status"], filed["rewards"], filed["vote"]["status"]) == ("unlabeled", None, "weak")
    assert filed["answers"] == ["4"]


# Own view of a problem -----------------------------------------------------------------------------------------------


def write_cohort(folder: Path) -> tuple[str, Path]:
    """The name of a member with the rephrased view, and the file."""
    name = f"b-{uuid.uuid4().hex[:8]}"
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "train.jsonl").write_text('{"problem_id": "p1", "problem": "original text", "answer": "1"}\n')
    (folder / "re.jsonl").write_text('{"problem_id": "p1", "problem": "rephrased text"}\n')
    path = folder / "cohort.yaml"
    path.write_text(
        f"""
name: demo
members:
  a: {{model: model, engine: transformers}}
  {name}: {{model: model, engine: transformers, view: rephrased}}
problems:
  train: {{path: train.jsonl}}
  views: {{rephrased: {{path: re.jsonl, columns: {{answer: null}}}}}}
prompt: {{template: "{{problem}} Reason."}}
"""
    )
    return name, path


@pytest.mark.parametrize(
    ("chat", "run", "problem", "asked"),
    [
        (True, "r", "p1", "rephrased text Reason."),
        (False, "r", "p1", "rephrased text Reason."),
        (True, "r", "other", "problem other"),
        (True, None, "p1", "problem p1"),
    ],
)
async def test_a_fresh_vote_is_sampled_on_the_members_own_view(
    judges: Judges, tmp_path: Path, chat: bool, run: str | None, problem: str, asked: str
) -> None:
    engine = ScriptedEngine(boxed("4"), chat_template=chat)
    name, cohort = write_cohort(tmp_path)
    judge = await judges.start(engine, member=name, cohort_file=cohort, start_wait_s=0)
    step: dict[str, Any] = {} if run is None else {"run": run, "step": 0}
    await judge.post("/v1/scores", scores(item(problem, "\\boxed{4}"), **step))
    [call] = engine.calls
    assert list(call.prompt_token_ids) == engine.encode(asked)


async def test_a_judge_of_one_run_takes_the_texts_of_others_from_the_request(judges: Judges, tmp_path: Path) -> None:
    engine = ScriptedEngine(boxed("4"))
    name, cohort = write_cohort(tmp_path)
    judge = await judges.start(engine, member=name, cohort_file=cohort, run="mine", start_wait_s=0)
    await judge.post("/v1/scores", scores(item("p1", "4"), run="mine", step=0))
    await judge.post("/v1/scores", scores(item("p1", "4"), run="other", step=0))
    asked = [list(call.prompt_token_ids) for call in engine.calls]
    assert asked == [engine.encode("rephrased text Reason."), engine.encode("problem p1")]
