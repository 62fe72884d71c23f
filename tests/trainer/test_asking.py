"""The main rank's talk with judges, without a training run around it: limits, leases, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from corl_trainer.evaluate import Evaluator
from corl_trainer.lease import TrainerLease
from corl_trainer.rollouts import Asked, JudgeRollouts
from corl_trainer.stops import Fenced, ServiceGone
from corl_trainer.teachers import Teacher

from corl.client import JudgeClient
from corl.cohort import HeldOut
from corl.wire import Limits, Policy, Sampling, WeightsTag
from tests.trainer.fake_judge import FakeJudge, status
from tests.trainer.stack import MODELS, wait_for

LIMITS = Limits(max_model_len=512, max_items=64, max_completions=1024, max_samples=64, max_body_bytes=1 << 24)


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge("llama", str(MODELS / "llama"), lambda problem, step, i: problem[-1] if i else "9") as judge:
        judge.loaded = WeightsTag(incarnation=1, version=9, digest="x")
        yield judge


@pytest.fixture
def client(judge: FakeJudge) -> Iterator[JudgeClient]:
    with JudgeClient(judge.url) as client:
        yield client


def rollouts(client: JudgeClient, **more: Any) -> JudgeRollouts:
    arguments: dict[str, Any] = {
        "judge": client,
        "member": "llama",
        "run": "r",
        "incarnation": 1,
        "n": 3,
        "sampling": Sampling(max_tokens=16),
        "task": "math",
        "limits": LIMITS,
        "vocab_size": 500,
        "deadline_s": 5.0,
    }
    return JudgeRollouts(**(arguments | more))


def asked(count: int) -> list[Asked]:
    return [Asked(f"p{i}", [1, 2, 3 + i]) for i in range(count)]


def test_rollouts_beyond_a_judges_limit_are_asked_for_in_parts(judge: FakeJudge, client: JudgeClient) -> None:
    own = rollouts(client, limits=LIMITS.model_copy(update={"max_items": 2}))
    found = own.collect(0, asked(5))
    assert [problem.problem_id for problem in found] == [f"p{i}" for i in range(5)]
    assert [len(body["problems"]) for body in judge.requests("rollouts")] == [2, 2, 1]
    with pytest.raises(ServiceGone, match=r"rollouts.n is 65 .* at most 64 samples"):
        rollouts(client, n=65)


def test_queued_rollouts_are_collected_once_and_only_for_their_step(judge: FakeJudge, client: JudgeClient) -> None:
    own = rollouts(client)
    own.queue(4, asked(2))
    assert len(own.collect(4, asked(2))) == 2
    assert judge.requests("rollouts") == []
    own.queue(5, asked(2))
    own.collect(4, asked(2))
    assert len(judge.requests("rollouts")) == 1, "another step than the queued one is asked for"
    own.queue(6, asked(2))
    own.drop_queued()
    assert len(judge.requests("cancel")) == 1


def test_scores_beyond_a_judges_limits_are_asked_for_in_parts(judge: FakeJudge, client: JudgeClient) -> None:
    problems = rollouts(client).collect(0, asked(5))
    teacher = Teacher(
        name="llama",
        judge=client,
        run="r",
        task="math",
        prompt=lambda problem: problem,
        options=lambda _: None,
        policy=Policy(samples=3),
        limits=LIMITS,
        deadline_s=5.0,
        pause_s=0.01,
    )
    for limits, parts in [
        ({"max_items": 2}, [2, 2, 1]),
        ({"max_completions": 6}, [2, 2, 1]),
        ({"max_body_bytes": 9000}, [1] * 5),
    ]:
        judge.asked.clear()
        small = dataclasses.replace(teacher, limits=LIMITS.model_copy(update=limits))
        answer = small.score(0, problems, histogram=True)
        assert [len(body["items"]) for body in judge.requests("scores")] == parts
        assert [item.problem_id for item in answer.items] == [f"p{i}" for i in range(5)]
        assert answer.waited_s == pytest.approx(0.25 * len(parts))


def test_the_lease_is_renewed_at_every_step_and_lost_to_a_newer_trainer(judge: FakeJudge, client: JudgeClient) -> None:
    lease = TrainerLease(client, "r", 3, ttl_s=600.0, deadline_s=5.0)
    assert lease.start() == 1
    lease.advance(4)
    wait_for(lambda: len(judge.requests("trainer")) == 2, "the step to be reported", 20)
    assert judge.requests("trainer")[-1] == {"run": "r", "step": 4, "ttl_s": 600.0, "incarnation": 1}
    lease.check()
    judge.faults["trainer"] = [status(503)] * 2  # passing trouble is not the end of it
    lease.advance(5)
    wait_for(lambda: len(judge.requests("trainer")) >= 5, "the renewal to be tried again", 20)
    lease.check()
    judge.incarnation = 2
    lease.advance(6)

    def fenced() -> bool:
        try:
            lease.check()
        except Fenced:
            return True
        return False

    wait_for(fenced, "the lease to be lost", 20)
    lease.close()
    lease.join()


def test_an_incarnation_is_above_all_that_published(judge: FakeJudge, client: JudgeClient) -> None:
    """A judge whose Redis was emptied counts from 1 again, but the folders of earlier incarnations are still there."""
    lease = TrainerLease(client, "r", 0, ttl_s=600.0, deadline_s=5.0)
    assert lease.start(above=3) == 4
    lease.close()
    lease.join()


def test_accuracy_on_held_out_problems(judge: FakeJudge, client: JudgeClient) -> None:
    problems = [HeldOut(f"h{i}", "2+2=", str(answer)) for i, answer in enumerate([0, 9, 2, 7])]
    evaluator = Evaluator(
        judge=client,
        run="r",
        incarnation=1,
        problems=problems,
        prompt=lambda text: text,
        task="math",
        options=None,
        samples=4,
        max_tokens=16,
        temperature=0.7,
        limits=LIMITS.model_copy(update={"max_items": 3}),
        deadline_s=5.0,
    )
    found = evaluator.run_at(5)
    # The script answers 9 in the first sample and the last figure of the problem id in the others.
    assert found.pass_at_1 == pytest.approx((3 + 1 + 3 + 0) / 16)
    assert found.maj == pytest.approx(2 / 4)
    assert set(found.metrics()) == {"eval/pass@1", "eval/maj@4", "eval/mean_tokens"}
    bodies = judge.requests("rollouts")
    assert [len(body["problems"]) for body in bodies] == [3, 1]
    assert all((b["purpose"], b["min_version"], b["sampling"]["temperature"]) == ("eval", 5, 0.7) for b in bodies)
    greedy = dataclasses.replace(evaluator, samples=1, problems=problems[:1]).run_at(5)
    assert judge.requests("rollouts")[-1]["sampling"]["temperature"] == 0.0
    assert greedy.maj is None
