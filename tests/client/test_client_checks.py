"""What a judge must not send: nothing of such an answer is used."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from corl import wire
from corl.errors import JudgeInvalid, JudgeRefused, JudgeStale, JudgeUnavailable
from tests.client.conftest import Face
from tests.client.http_script import ScriptedServer, reply
from tests.client.samples import ROLLOUTS, SCORES, VOTE, WEIGHTS, completion, rollouts, scores, tag

Spoil = Callable[[dict[str, Any]], object]


def spoilt(body: dict[str, Any], spoil: Spoil) -> dict[str, Any]:
    body = copy.deepcopy(body)
    spoil(body)
    return body


def put(*path: str | int, value: Any) -> Spoil:
    def spoil(body: Any) -> None:
        for step in path[:-1]:
            body = body[step]
        body[path[-1]] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (put("run", value="another"), "run: expected 'r', got 'another'"),
        (put("run", value=None), "run: expected 'r', got None"),
        (put("step", value=4), "step: expected 3, got 4"),
        (lambda body: body["items"].reverse(), "item ids"),
        (lambda body: body["items"].pop(), "item ids"),
        (put("items", 0, "id", value="z"), "item ids"),
        (put("items", 0, "problem_id", value="z"), "item 'a': problem_id"),
        (put("items", 0, "rewards", value=[1.0]), "item 'a': rewards: expected 2, got 1"),
        (put("items", 0, "rewards", value=[1.0, 0.0, 0.0]), "item 'a': rewards: expected 2, got 3"),
        (put("items", 0, "rewards", value=None), "expected rewards"),
        (put("items", 0, "rewards", value=[1.0, math.nan]), "rewards.1: Input should be a finite number"),
        (put("items", 0, "rewards", value=[1.0, math.inf]), "rewards.1"),
        (put("items", 0, "rewards", value=[1.0, None]), "rewards.1"),
        (put("items", 0, "rewards", value=[1.0, 1e9]), "reward 1 is 1000000000.0"),
        (put("items", 0, "rewards", value=[1.0, -0.5]), "reward 1 is -0.5"),
        (put("items", 0, "answers", value=["4"]), "item 'a': answers: expected 2, got 1"),
        (put("items", 0, "vote", value=None), "that of the vote is None"),
        (put("items", 0, "vote", "status", value="tie"), "no key"),
        (put("items", 0, "vote", value={"status": "none"}), "that of the vote is 'none'"),
        (put("items", 0, "vote", "share", value=math.nan), "vote.share"),
        (put("items", 0, "vote", "keys", value=[]), "keys that hold the key"),
        (put("items", 0, "vote", "keys", value=["garbage"]), "answer key 'garbage'"),
        (put("items", 0, "vote", "count", value=3), "count <= parsed <= total"),
        (put("items", 0, "status", value="failed"), "expected a failure"),
        (put("items", 0, "status", value="unlabeled"), "that of the vote is 'ok'"),
        (put("items", 1, "rewards", value=[0.0]), "item 'b': status is 'unlabeled': expected no rewards"),
        (put("items", 1, "vote", value=VOTE), "item 'b'"),
        (put("weights", "version", value=-1), "weights.version"),
        (lambda body: body.pop("weights"), "weights: Field required"),
    ],
)
def test_scores_that_do_not_fit(client: Face, spoil: Spoil, told: str) -> None:
    with ScriptedServer([reply(200, spoilt(scores(), spoil))]) as server:
        with pytest.raises(JudgeInvalid) as caught:
            client(server.url).scores(SCORES)
        assert len(server.requests) == 1
    assert told in str(caught.value)
    assert f"judge {server.url}: POST /v1/scores: answered 200" in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (put("run", value="another"), "run: expected 'r', got 'another'"),
        (put("step", value=None), "step: expected 3, got None"),
        (lambda body: body["problems"].reverse(), "problem ids"),
        (lambda body: body["problems"].append(body["problems"][0]), "problem ids"),
        (lambda body: body["problems"][1]["completions"].pop(), "problem 'p2': completions: expected 2, got 1"),
        (lambda body: body["problems"][1]["completions"].append(completion()), "completions: expected 2, got 3"),
        (put("problems", 0, "completions", 1, "logprobs", value=[-0.5]), "logprobs of completion 1: expected 2, got 1"),
        (put("problems", 0, "completions", 1, "logprobs", 0, value=math.nan), "logprobs.0"),
        (put("problems", 0, "completions", 1, "logprobs", 0, value=-math.inf), "logprobs.0"),
        (put("problems", 0, "completions", 1, "logprobs", 0, value=None), "logprobs.0"),
        (put("problems", 0, "prompt_token_ids", value=[1, 2]), "prompt_token_ids: expected [1, 2, 3], got [1, 2]"),
        (put("problems", 0, "vote", "total", value=3), "answers in the vote: expected 2, got 3"),
        (put("problems", 0, "weights", value=tag(2)), "older than"),
    ],
)
def test_rollouts_that_do_not_fit(client: Face, spoil: Spoil, told: str) -> None:
    with ScriptedServer([reply(200, spoilt(rollouts(), spoil))]) as server:
        with pytest.raises(JudgeInvalid) as caught:
            client(server.url).rollouts(ROLLOUTS)
        assert len(server.requests) == 1
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>Sign in</html>", b"null", b"[]", b'{"member": "b"', b"\xff\xfe", b"[" * 100_000, b'{"member": 1}'],
    ids=["empty", "html", "null", "list", "cut", "not utf-8", "deep", "wrong type"],
)
def test_garbage(client: Face, body: bytes) -> None:
    with ScriptedServer([reply(200, body)]) as server:
        with pytest.raises(JudgeInvalid, match=f"{len(body)} bytes"):
            client(server.url).scores(SCORES)
        assert len(server.requests) == 1


def test_a_body_that_is_not_what_its_encoding_says(client: Face) -> None:
    lie = reply(200, b"not gzip", content_encoding="gzip")
    with ScriptedServer([lie]) as server, pytest.raises(JudgeInvalid, match="cannot be decoded"):
        client(server.url).scores(SCORES)


def test_nan_beyond_the_known_fields_is_ignored_like_them(client: Face) -> None:
    with ScriptedServer([reply(200, scores(news=math.nan))]) as server:
        assert client(server.url).scores(SCORES).member == "b"


def test_failed_items_carry_their_reason_and_no_reward(client: Face) -> None:
    body = scores()
    body["items"][0] = {
        "id": "a",
        "problem_id": "p1",
        "status": "failed",
        "failure": {"kind": "engine", "message": "out of memory"},
    }
    with ScriptedServer([reply(200, body)]) as server:
        item = client(server.url).scores(SCORES).items[0]
    assert (item.rewards, item.failure and item.failure.kind) == (None, "engine")


def test_a_histogram_that_was_asked_for_must_come_and_add_up(client: Face) -> None:
    request = SCORES.model_copy(update={"histogram": True})
    body = scores()
    with ScriptedServer([reply(200, body)]) as server, pytest.raises(JudgeInvalid, match="expected a histogram"):
        client(server.url).scores(request)
    for item in body["items"]:
        item["vote"]["histogram"] = []
    with ScriptedServer([reply(200, body)]) as server, pytest.raises(JudgeInvalid, match="counts add up to 0"):
        client(server.url).scores(request)
    body["items"][0]["vote"]["histogram"] = [{"answer": "4", "key": "q:4", "count": 2}]
    with ScriptedServer([reply(200, body)]) as server:
        assert client(server.url).scores(request).items[0].vote.histogram[0].count == 2


# Weights -------------------------------------------------------------------------------------------------------------


def weighed(body: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    for problem in body.get("problems", []):
        problem["weights"] = weights
    return {**body, "weights": weights}


@pytest.mark.parametrize("older", [tag(2), tag(9, incarnation=0)], ids=["version", "incarnation"])
def test_rollouts_with_older_weights_are_stale_at_once(client: Face, older: dict[str, Any]) -> None:
    answers = [reply(200, weighed(rollouts(), tag(3))), reply(200, weighed(rollouts(), older))]
    with ScriptedServer(answers) as server:
        judge = client(server.url)
        judge.rollouts(ROLLOUTS)
        with pytest.raises(JudgeStale) as caught:
            judge.rollouts(ROLLOUTS)
        assert len(server.requests) == 2
    assert caught.value.seen.version == 3
    assert caught.value.got == wire.WeightsTag.model_validate(older)


def test_newer_weights_and_new_labels_of_the_same_weights_are_welcome(client: Face) -> None:
    tags = [tag(3), tag(3), tag(4), tag(1, incarnation=2), tag(9, incarnation=1, digest="d2.1")]
    with ScriptedServer([reply(200, weighed(rollouts(), weights)) for weights in tags]) as server:
        judge = client(server.url)
        assert [judge.rollouts(ROLLOUTS).weights.version for _ in tags] == [3, 3, 4, 1, 9]
        server.script[:] = [reply(200, weighed(rollouts(), tag(4)))]
        with pytest.raises(JudgeStale):
            judge.rollouts(ROLLOUTS)


def test_scores_of_a_replica_that_lags_are_asked_for_again(client: Face) -> None:
    new, old = (reply(200, scores(weights=tag(version))) for version in (4, 3))
    with ScriptedServer([new, old, old, new, old]) as server:
        judge = client(server.url)
        assert judge.scores(SCORES).weights.version == 4
        assert judge.scores(SCORES).weights.version == 4
        assert len(server.requests) == 4
        with pytest.raises(JudgeStale, match=r"1:3:d1\.3, older than 1:4:d1\.4"):
            judge.scores(SCORES)
        assert len(server.requests) == 8


def test_a_lagging_replica_until_the_deadline_is_unavailable(client: Face) -> None:
    new, old = (reply(200, scores(weights=tag(version))) for version in (4, 3))
    with ScriptedServer([new, old]) as server:
        judge = client(server.url)
        judge.scores(SCORES)
        with pytest.raises((JudgeUnavailable, JudgeStale)):
            judge.scores(SCORES, deadline_s=0.02)


def test_min_version_holds(client: Face) -> None:
    request = ROLLOUTS.model_copy(update={"min_version": 4})
    told = "expected version 4 or later, got 1:3:d3"
    with ScriptedServer([reply(200, rollouts())]) as server, pytest.raises(JudgeInvalid, match=told):
        client(server.url).rollouts(request)


def status(desired: dict[str, Any] | None, *replicas: dict[str, Any]) -> dict[str, Any]:
    return {"desired": desired, "replicas": list(replicas)}


def replica(state: str = "ready", **changes: Any) -> dict[str, Any]:
    return {"id": "x", "member": "b", "state": state, "loaded": tag(3), "started_at": 0.0, **changes}


def test_a_publication_must_be_what_is_wanted(client: Face) -> None:
    accepted = {"incarnation": 1, "version": 4, "digest": "d4"}
    with ScriptedServer([reply(202, status(accepted, replica()))]) as server:
        assert client(server.url).put_weights(WEIGHTS).desired.version == 4
        assert json.loads(server.requests[0].body)["uri"] == "r/a/v4"
    for desired in (None, tag(3), tag(4, digest="another")):
        with ScriptedServer([reply(202, status(desired))]) as server, pytest.raises(JudgeInvalid, match="desired"):
            client(server.url).put_weights(WEIGHTS)


def test_what_is_wanted_goes_back_only_after_a_failed_load(client: Face) -> None:
    failed = replica("failed", reload_error="digest of lm_head differs")
    script = [reply(200, status(tag(4))), reply(200, status(tag(3), failed)), reply(200, status(tag(3), replica()))]
    with ScriptedServer(script) as server:
        judge = client(server.url)
        assert [judge.weights().desired.version for _ in script] == [4, 3, 3]
        server.script[:] = [reply(200, status(tag(2), replica()))]
        with pytest.raises(JudgeStale):
            judge.weights()
        assert len(server.requests) == 3 + 4


def test_weights_passes_on_what_to_wait_for(client: Face) -> None:
    with ScriptedServer([reply(200, status(tag(4)))]) as server:
        judge = client(server.url)
        judge.weights(4, wait_s=2.5)
        judge.weights()
        assert [r.query for r in server.requests] == [{"version": ["4"], "wait_s": ["2.500"]}, {"wait_s": ["0.000"]}]


def test_a_lease_must_echo_its_holder(client: Face) -> None:
    update = wire.TrainerUpdate(run="r", step=3, ttl_s=30, incarnation=2)
    lease = {"run": "r", "incarnation": 2, "step": 3, "ttl_s": 30}
    with ScriptedServer([reply(200, lease)]) as server:
        assert client(server.url).put_trainer(update).incarnation == 2
    for change in ({"run": "s"}, {"step": 4}, {"incarnation": 3}):
        with ScriptedServer([reply(200, lease | change)]) as server, pytest.raises(JudgeInvalid, match="expected"):
            client(server.url).put_trainer(update)


def test_votes_are_dropped_for_the_steps_that_were_named(client: Face) -> None:
    lost, dropped = reply(503, b""), {"run": "r", "after": 7, "dropped": 3}
    with ScriptedServer([lost, reply(200, dropped)]) as server:
        assert client(server.url).drop_votes("r", 7).dropped == 3
        assert [(r.method, r.path, r.query) for r in server.requests] == [
            ("DELETE", "/v1/votes", {"run": ["r"], "after": ["7"]})
        ] * 2
    for change in ({"run": "s"}, {"after": 8}):
        with ScriptedServer([reply(200, dropped | change)]) as server, pytest.raises(JudgeInvalid, match="expected"):
            client(server.url).drop_votes("r", 7)
    with ScriptedServer([lost, reply(404, b"")]) as server, pytest.raises(JudgeRefused):
        client(server.url).drop_votes("r", 7)
