"""The wire contract: what is read back is what was sent, and what is malformed is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from corl import wire
from corl.votes import Histogram, tally
from corl.wire_votes import from_wire, histogram_from_wire, to_wire

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
identifier = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
name = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 2**31), min_size=1, max_size=5)
tags = st.builds(wire.WeightsTag, incarnation=st.integers(0, 9), version=st.integers(0, 99), digest=text)
steps = st.none() | st.integers(0, 2**53)
messages = st.lists(
    st.builds(
        wire.Message,
        role=st.sampled_from(["system", "user", "assistant"]),
        content=text
        | st.lists(
            st.builds(wire.TextPart, type=st.just("text"), text=text)
            | st.builds(wire.ImagePart, type=st.just("image_url"), image_url=st.builds(wire.ImageURL, url=text)),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=3,
)
options = st.none() | st.lists(text, max_size=3) | st.dictionaries(text, text, max_size=3)
tasks = st.sampled_from(["math", "choice", "text"])
problems = st.builds(
    wire.Problem, problem_id=identifier, prompt=identifier | ids | messages, task=tasks, options=options
)
rollouts_requests = st.builds(
    wire.RolloutsRequest,
    problems=st.lists(problems, min_size=1, max_size=3, unique_by=lambda problem: problem.problem_id),
    n=st.integers(1, 8),
    run=name,
    step=steps,
    incarnation=st.none() | st.integers(1, 9),
    purpose=st.sampled_from(["train", "eval"]),
    min_version=st.none() | st.integers(0, 9),
    deadline_s=st.floats(0.001, 86_400),
)
score_items = st.builds(
    wire.ScoreItem,
    id=identifier,
    problem_id=identifier,
    prompt=identifier | messages,
    completions=st.lists(text, max_size=3),
    task=tasks,
    options=options,
)
scores_requests = st.builds(
    wire.ScoresRequest,
    items=st.lists(score_items, min_size=1, max_size=3, unique_by=lambda item: item.id),
    run=name,
    step=steps,
    sampling=st.none() | st.builds(wire.Sampling, max_tokens=st.integers(1, 99), temperature=st.floats(0, 2)),
    policy=st.builds(wire.Policy, threshold=st.floats(0, 1), max_lag=st.none() | st.integers(0, 9)),
)
answers = st.lists(st.sampled_from(["1/2", "50\\%", "50", "x", "3", "0.333", "1/3"]) | st.none(), max_size=9)
votes = st.builds(
    lambda given, tag, histogram: to_wire(
        tally(given), source="rollout", weights=tag, histogram=Histogram.of(given) if histogram else None
    ),
    answers,
    tags,
    st.booleans(),
)
completions = st.lists(st.tuples(st.integers(0, 2**31), finite), max_size=4).flatmap(
    lambda tokens: st.builds(
        wire.Completion,
        token_ids=st.just([token for token, _ in tokens]),
        logprobs=st.just([logprob for _, logprob in tokens]),
        text=text,
        finish_reason=st.sampled_from(["stop", "length"]),
        answer=st.none() | text,
    )
)
rollouts_responses = st.builds(
    wire.RolloutsResponse,
    member=name,
    run=st.none() | name,
    step=steps,
    problems=st.lists(
        st.builds(
            wire.ProblemRollouts,
            problem_id=identifier,
            prompt_token_ids=ids,
            completions=st.lists(completions, max_size=3),
            vote=votes,
            weights=tags,
        ),
        max_size=3,
    ),
    weights=tags,
)
failures = st.builds(wire.Failure, kind=st.sampled_from(["timeout", "invalid", "engine", "internal"]), message=text)
scored_items = st.builds(
    wire.ScoredItem,
    id=identifier,
    problem_id=identifier,
    status=st.sampled_from(["scored", "unlabeled", "failed"]),
    rewards=st.none() | st.lists(finite, max_size=3),
    answers=st.lists(st.none() | text, max_size=3),
    vote=st.none() | votes,
    failure=st.none() | failures,
)
scores_responses = st.builds(
    wire.ScoresResponse,
    member=name,
    run=st.none() | name,
    step=steps,
    items=st.lists(scored_items, max_size=3),
    weights=tags,
    waited_s=st.floats(0, 1e6),
)
problem_bodies = st.builds(
    wire.ErrorBody,
    type=text,
    title=text,
    status=st.integers(400, 599),
    detail=st.none() | text,
    errors=st.lists(st.builds(wire.FieldError, field=text, message=text, value=st.none() | text), max_size=2),
)
job_requests = st.builds(wire.JobRequest, kind=st.just("rollouts"), request=rollouts_requests) | st.builds(
    wire.JobRequest, kind=st.just("scores"), request=scores_requests
)
job_statuses = st.builds(
    wire.JobStatus,
    id=identifier,
    kind=st.sampled_from(["rollouts", "scores"]),
    status=st.sampled_from(["queued", "running", "done", "failed", "cancelled"]),
    done=st.integers(0, 9),
    total=st.integers(0, 9),
    created_at=finite,
    result=st.none() | rollouts_responses | scores_responses,
    error=st.none() | problem_bodies,
)
weights_updates = st.builds(
    wire.WeightsUpdate,
    run=name,
    incarnation=st.integers(1, 9),
    version=st.integers(0, 9),
    digest=identifier,
    uri=identifier,
)
replicas = st.builds(
    wire.Replica,
    id=text,
    member=name,
    state=st.sampled_from(["starting", "ready", "draining_for_reload", "loading", "failed", "draining"]),
    loaded=st.none() | tags,
    started_at=finite,
    reload_error=st.none() | text,
)
weights_statuses = st.builds(
    wire.WeightsStatus, desired=st.none() | tags, uri=st.none() | text, replicas=st.lists(replicas, max_size=3)
)
trainer_updates = st.builds(
    wire.TrainerUpdate,
    run=name,
    step=st.integers(0, 9),
    ttl_s=st.floats(0.1, 3600),
    incarnation=st.none() | st.integers(1, 9),
)


@pytest.mark.parametrize(
    "models",
    [
        pytest.param(strategy, id=label)
        for label, strategy in {
            "rollouts request": rollouts_requests,
            "scores request": scores_requests,
            "job request": job_requests,
            "weights update": weights_updates,
            "trainer update": trainer_updates,
            "rollouts response": rollouts_responses,
            "scores response": scores_responses,
            "job status": job_statuses,
            "weights status": weights_statuses,
            "problem": problem_bodies,
        }.items()
    ],
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_round_trips(models: st.SearchStrategy[BaseModel], data: st.DataObject) -> None:
    model = data.draw(models)
    again = type(model).model_validate_json(model.model_dump_json())
    assert again == model
    assert again.model_dump() == model.model_dump()


PROBLEM = {"problem_id": "p", "prompt": "x"}
ITEM = {"id": "a", "problem_id": "p", "prompt": "x", "completions": []}


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 1, "temprature": 1}, "temprature"),
        (wire.RolloutsRequest, {"problems": [], "n": 1}, "problems"),
        (wire.RolloutsRequest, {"problems": [PROBLEM, PROBLEM], "n": 1}, "'p' appears twice"),
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 0}, "n"),
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 2, "sampling": {"temperature": 0}}, "greedy"),
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 1, "step": 3}, "step is given without run"),
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 1, "deadline_s": math.inf}, "deadline_s"),
        (wire.RolloutsRequest, {"problems": [{**PROBLEM, "prompt": []}], "n": 1}, "prompt"),
        (wire.RolloutsRequest, {"problems": [{**PROBLEM, "prompt": [-1]}], "n": 1}, "prompt"),
        (wire.RolloutsRequest, {"problems": [PROBLEM], "n": 1, "run": "../up"}, "run"),
        (wire.ScoresRequest, {"items": [{**ITEM, "prompt": [1, 2]}]}, "another member's tokenizer"),
        (wire.ScoresRequest, {"items": [ITEM, ITEM]}, "'a' appears twice"),
        (wire.ScoresRequest, {"items": [ITEM], "policy": {"threshold": math.nan}}, "threshold"),
        (wire.JobRequest, {"kind": "scores", "request": {"problems": [PROBLEM], "n": 1}}, "not the body of that route"),
        (wire.TrainerUpdate, {"run": "r", "step": 0, "ttl_s": 0}, "ttl_s"),
    ],
)
def test_malformed_requests_are_refused_by_name(model: type[BaseModel], body: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        model.model_validate(body)


def test_an_older_client_reads_a_newer_server() -> None:
    tag = wire.WeightsTag.model_validate_json('{"incarnation": 1, "version": 2, "digest": "d", "news": [1]}')
    assert tag.label() == "1:2:d"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_no_response_holds_a_number_that_is_none(number: str) -> None:
    body = f'{{"token_ids": [1], "logprobs": [{number}], "text": "", "finish_reason": "stop", "answer": null}}'
    with pytest.raises(ValidationError, match="finite"):
        wire.Completion.model_validate_json(body)


# Votes ---------------------------------------------------------------------------------------------------------------


def test_a_vote_says_whose_and_how_it_came_about() -> None:
    given_answers = ["50\\%", "50", "50", "7", None]
    tag = wire.WeightsTag(incarnation=1, version=2, digest="d")
    sent = to_wire(tally(given_answers), source="fresh", weights=tag, histogram=Histogram.of(given_answers))
    assert (sent.status, sent.answer, sent.key, sent.source, sent.weights) == ("ok", "50", "q:50", "fresh", tag)
    assert sent.keys[0] == "q:50"
    assert len(sent.keys) == 2
    assert (sent.count, sent.parsed, sent.total, sent.share) == (3, 4, 5, 0.75)
    assert sent.runner_up == wire.RunnerUp(answer="7", key="q:7", count=1)
    assert [(entry.answer, entry.count) for entry in sent.histogram or []] == [("50\\%", 1), ("50", 2), ("7", 1)]
    assert to_wire(tally([None])).histogram is None
    assert histogram_from_wire(to_wire(tally(["3"]))) is None


def test_a_weighted_vote_stays_at_home() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        to_wire(tally(["3", "3"], weights=[0.5, 0.25]))
    assert to_wire(tally(["3", "3"], weights=[2, 1])).count == 3


OK = to_wire(tally(["3", "3"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"keys": ["garbage"]}, "answer key"),
        ({"keys": []}, "keys that hold the key"),
        ({"key": "q:4"}, "keys that hold the key"),
        ({"answer": None}, "expected answer"),
        ({"count": 0}, "count <= parsed"),
        ({"count": 3}, "count <= parsed"),
        ({"parsed": 3}, "parsed <= total"),
        ({"status": "none"}, "no key"),
        ({"status": "tie"}, "no key"),
        ({"runner_up": wire.RunnerUp(answer="4", key="4", count=1)}, "answer key"),
    ],
)
def test_a_vote_that_contradicts_itself_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_wire(OK.model_copy(update=change))


def test_a_histogram_that_does_not_add_up_is_refused() -> None:
    vote = OK.model_copy(update={"histogram": [wire.AnswerCount(answer="3", key="q:3", count=1)]})
    with pytest.raises(ValueError, match="add up to 1, parsed is 2"):
        histogram_from_wire(vote)
