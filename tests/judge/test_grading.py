"""Judging off the event loop: same verdicts inline and in a process; a grader that dies is an error, never a zero."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from corl_judge import grading
from corl_judge.grading import Grading, GradingFailed
from corl_judge.verdicts import Asked, Verdict, collect, judge
from hypothesis import given
from hypothesis import strategies as st

from tests.judge.harness import Judges, item, rollouts, scores, until
from tests.scripted import ScriptedEngine, boxed


@pytest.fixture
async def graders() -> AsyncIterator[Grading]:
    graders = Grading(2, 30.0)
    await graders.start()
    yield graders
    await graders.close()


def asked(*completions: str, answers: tuple[str, ...] = ("4", "4", "5"), **more: Any) -> Asked:
    packed = collect([f"\\boxed{{{a}}}" for a in answers], "math", None)[1]
    return Asked(completions, "math", None, packed, more.get("threshold", 0.0), "abstain", 2)


async def test_large_and_small_batches_have_the_same_verdicts(graders: Grading) -> None:
    texts = ["\\boxed{4}", "\\boxed{8/2}", "\\boxed{5}", "nothing", "\\boxed{", "∫" * 50]
    small = await graders.judge([asked(*texts)])
    large = await graders.judge([asked(*texts * 100) for _ in range(3)])
    [verdict] = small
    assert isinstance(verdict, Verdict)
    assert verdict.rewards == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    for other in large:
        assert isinstance(other, Verdict)
        assert other.rewards == verdict.rewards * 100
        assert other.answers == verdict.answers * 100
        assert other.vote == verdict.vote


async def test_unlabeled_verdicts_have_no_rewards_in_a_process_either(graders: Grading) -> None:
    for verdict in await graders.judge([asked(*["\\boxed{4}"] * 600, threshold=0.9)]):
        assert isinstance(verdict, Verdict)
        assert verdict.rewards is None
        assert verdict.vote.status == "weak"
        assert len(verdict.answers) == 600


async def test_no_completions_are_judged_too(graders: Grading) -> None:
    [verdict] = await graders.judge([asked()])
    assert isinstance(verdict, Verdict)
    assert (verdict.answers, verdict.rewards) == ([], [])
    assert await graders.judge([]) == []


async def test_a_killed_grader_is_replaced_and_its_work_done(graders: Grading) -> None:
    first = await graders.judge([asked(*["\\boxed{4}"] * 600)])
    for pid in graders.pids:
        os.kill(pid, signal.SIGKILL)
    assert await graders.judge([asked(*["\\boxed{4}"] * 600)]) == first


async def test_a_completion_that_stalls_the_grader_fails_its_own_item_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A grader that really hangs on one text (a module put in front of the real one) is ended and replaced."""
    (tmp_path / "sitecustomize.py").write_text(
        "import corl.answers, time\n"
        "real = corl.answers.extract\n"
        "def extract(text, task='math', options=None):\n"
        "    if 'STALL' in text: time.sleep(3600)\n"
        "    if 'CRASH' in text: __import__('os')._exit(9)\n"
        "    return real(text, task, options)\n"
        "corl.answers.extract = extract\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    graders = Grading(1, 5.0)
    await graders.start()
    try:
        good, stall, crash = ["\\boxed{4}"] * 100, ["STALL"] * 2, ["CRASH"] * 2
        verdicts = await graders.judge([asked(*good), asked(*stall), asked(*crash), asked(*good)])
    finally:
        await graders.close()
    assert [isinstance(v, Verdict) for v in verdicts] == [True, False, False, True]
    assert isinstance(verdicts[1], GradingFailed)
    assert "longer than 5.0 s" in str(verdicts[1])
    assert "died" in str(verdicts[2])
    assert isinstance(verdicts[3], Verdict)
    assert verdicts[3].rewards == [1.0] * 100


async def test_a_grader_that_gives_wrong_verdicts_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import corl.answers\ncorl.answers.extract = lambda text, task='math', options=None: None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    graders = Grading(1, 30.0)
    with pytest.raises(GradingFailed, match="self-test"):
        await graders.start()
    await graders.close()


async def test_ended_graders_leave_no_process(graders: Grading) -> None:
    pids = graders.pids
    assert len(pids) == 2
    await graders.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_items_whose_grading_fails_are_failed_and_never_zero(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = await judges.start(ScriptedEngine(boxed("4")))
    await judge.post("/v1/rollouts", rollouts("p1", run="r", step=0))

    async def dead(*_: Any) -> None:
        raise GradingFailed("the grader process died")

    monkeypatch.setattr(grading._Grader, "ask", dead)
    body = scores(item("p1", *["\\boxed{4}"] * 500), run="r", step=0)
    [failed] = (await judge.post("/v1/scores", body))["items"]
    assert (failed["status"], failed["rewards"], failed["failure"]["kind"]) == ("failed", None, "internal")
    monkeypatch.undo()
    [scored] = (await judge.post("/v1/scores", body))["items"]
    assert scored["rewards"] == [1.0] * 500


async def test_a_cancelled_request_does_not_confuse_the_next(graders: Grading) -> None:
    slow = asyncio.create_task(graders.judge([asked(*["x \\boxed{5}" * 50] * 3000)]))
    await until(lambda: graders.busy > 0)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    [verdict] = await graders.judge([asked(*["\\boxed{4}"] * 600)])
    assert isinstance(verdict, Verdict)
    assert verdict.rewards == [1.0] * 600


@given(st.lists(st.text(max_size=40), max_size=40), st.sampled_from(["math", "text"]))
def test_parts_of_a_problem_are_judged_as_the_whole(texts: list[str], task: str) -> None:
    packed = collect(texts[:5] or ["x"], task, None)[1]  # type: ignore[arg-type]
    whole = Asked(texts, task, None, packed, 0.0, "first", 1)  # type: ignore[arg-type]
    parts = [judge(part) for part in grading._parts(whole)]
    assert [answer for part in parts for answer in part.answers] == judge(whole).answers
