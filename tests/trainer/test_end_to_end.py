"""Nano members trained against real judges: HTTP, Redis, transformers engine."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.member import train_member
from corl_trainer.runlog import MemberLog, read_run
from corl_trainer.stops import ExitCode

from corl.client import JudgeClient
from corl.weights import checkpoint_digest
from tests.trainer.fake_judge import FakeJudge, answers
from tests.trainer.stack import (
    MODELS,
    cohort,
    ended,
    free_port,
    judge_process,
    settings,
    trainer_process,
    write_cohort,
)


def rollouts_of(log: MemberLog) -> list[float]:
    return [row["votes/fresh"] for row in log.steps]


def test_a_pair_in_lock_step(judges: dict[str, str], weights: Path, tmp_path: Path) -> None:
    """Each is rewarded by the other's own rollouts: nothing is sampled for a vote, and every step is met by both."""
    small: dict[str, Any] = {"training__steps": 3, "training__sample_completions_every": 1}
    file = write_cohort(tmp_path / "cohort.yaml", **small)
    addresses = [part for name, url in judges.items() for part in ("--judge", f"{name}={url}")]
    log = tmp_path / "qwen.log"
    command = [file, "--member", "qwen", "--run", "pair", "--run-dir", tmp_path, "--weights", weights, *addresses]
    with trainer_process(command, log) as process:
        code = train_member(settings(cohort(**small), "llama", tmp_path, judges, "pair", weights=weights))
        assert ended(process, log) == ExitCode.DONE, log.read_text()[-3000:]
    assert code is ExitCode.DONE
    logs = read_run(tmp_path)
    assert set(logs) == {"llama", "qwen"}
    for name, found in logs.items():
        assert [row["step"] for row in found.steps] == [1, 2, 3]
        assert rollouts_of(found) == [0, 0, 0], "every vote was a by-product of the peer's rollouts"
        assert all(row["votes/labeled"] > 0 for row in found.steps)
        # The sampler's log-probabilities are the trainer's own: the ratio is 1 but for rounding.
        assert all(abs(row["sampling/importance_sampling_ratio/mean"] - 1) < 1e-2 for row in found.steps)
        assert all(row["sampling/sampling_logp_difference/max"] < 1e-2 for row in found.steps)
        assert 0.0 < found.evals[0]["eval/pass@1"] <= 1.0
        with JudgeClient(judges[name]) as judge:
            loaded = judge.weights().replicas[0].loaded
        assert loaded is not None
        assert (loaded.version, loaded.digest) == (3, checkpoint_digest(tmp_path / name / "final"))
        assert found.evals[-1]["step"] == 3


def test_a_ring_of_three_with_a_frozen_member(judges: dict[str, str], weights: Path, tmp_path: Path) -> None:
    """llama <- qwen <- third <- llama; the third, scripted, is frozen: it teaches and is not trained."""
    with FakeJudge("third", str(MODELS / "qwen"), answers("c"), frozen=True, fresh=True) as third:
        urls = judges | {"third": third.url}
        of = cohort(
            members__third={"model": str(MODELS / "qwen"), "engine": "transformers", "frozen": True},
            training__steps=2,
            problems__heldout=None,
            vote__wait_s=1,
            vote__start_wait_s=1,
        )
        assert [of.teachers(name) for name in ("llama", "qwen", "third")] == [["qwen"], ["third"], []]
        codes = [
            train_member(settings(of, name, tmp_path, urls, "ring", weights=weights)) for name in ("qwen", "llama")
        ]
    assert codes == [ExitCode.DONE, ExitCode.DONE]
    logs = read_run(tmp_path)
    assert rollouts_of(logs["qwen"]) == [4, 4], "the frozen member has no rollouts of its own to vote with"
    assert rollouts_of(logs["llama"]) == [0, 0], "qwen, trained before, has filed the votes of both steps"
    assert len(third.requests("scores")) == 2


def test_all_teach_all(judges: dict[str, str], weights: Path, tmp_path: Path) -> None:
    """Several teachers: the plurality of their votes."""
    with FakeJudge("third", str(MODELS / "qwen"), answers("c", 1), frozen=True) as third:
        of = cohort(
            members__third={"model": str(MODELS / "qwen"), "engine": "transformers", "frozen": True},
            topology="all",
            training__steps=1,
            problems__heldout=None,
            vote__wait_s=0,
        )
        urls = judges | {"third": third.url}
        assert train_member(settings(of, "llama", tmp_path, urls, "all", weights=weights)) is ExitCode.DONE
    (row,) = read_run(tmp_path)["llama"].steps
    assert row["votes/tie"] + row["votes/ok"] + row["votes/none"] + row["votes/weak"] == pytest.approx(1.0)
    assert len(third.requests("scores")) == 1


def test_the_own_judge_is_killed_and_started_again(own_redis_url: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of a step: the trainer waits until the new process has loaded that step's weights."""
    file = write_cohort(tmp_path / "cohort.yaml", members__llama__url="http://127.0.0.1:1")
    port, shared = free_port(), tmp_path / "weights"
    shared.mkdir()
    command = [file, "--member", "llama", "--port", str(port), "--redis", own_redis_url, "--weights", shared]
    log = tmp_path / "judge.log"
    with ExitStack() as stack, FakeJudge("qwen", str(MODELS / "qwen"), answers("b"), frozen=True) as qwen:
        first = stack.enter_context(judge_process(command, log))

        def kill(body: dict[str, Any]) -> dict[str, Any]:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            threading.Thread(target=lambda: stack.enter_context(judge_process(command, log))).start()
            return body

        qwen.faults["scores"] = [lambda body: body, kill]
        urls = {"llama": f"http://127.0.0.1:{port}", "qwen": qwen.url}
        of = cohort(training__steps=3, problems__heldout=None, vote__wait_s=1, training__service_deadline_s=120)
        code = train_member(settings(of, "llama", tmp_path, urls, "killed", weights=shared))
        assert code is ExitCode.DONE, log.read_text()[-3000:]
        with JudgeClient(urls["llama"]) as judge:
            loaded = [replica.loaded for replica in judge.weights().replicas if replica.loaded]
    assert 3 in [tag.version for tag in loaded]
    found = read_run(tmp_path)["llama"]
    assert [row["step"] for row in found.steps] == [1, 2, 3]
    assert [row["incarnation"] for row in found.steps] == [found.steps[0]["incarnation"]] * 3, "one life of the trainer"


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_over_vllm(own_redis_url: str, tmp_path: Path) -> None:
    """The member's judge runs vLLM: weights are reloaded into it, and its log-probabilities are the trainer's own."""
    pytest.importorskip("vllm")
    file = write_cohort(tmp_path / "cohort.yaml", members__llama__engine="vllm")
    port, shared = free_port(), tmp_path / "weights"
    shared.mkdir()
    command = [file, "--member", "llama", "--port", str(port), "--redis", own_redis_url, "--weights", shared]
    log = tmp_path / "judge.log"
    more: dict[str, Any] = {"training__steps": 2, "problems__heldout": None, "training__service_deadline_s": 600}
    with judge_process(command, log), FakeJudge("qwen", str(MODELS / "qwen"), answers("b"), frozen=True) as qwen:
        urls = {"llama": f"http://127.0.0.1:{port}", "qwen": qwen.url}
        of = cohort(**more, training__learning_rate=1e-3)
        code = train_member(settings(of, "llama", tmp_path, urls, "vllm", weights=shared))
        assert code is ExitCode.DONE, log.read_text()[-3000:]
        with JudgeClient(urls["llama"]) as judge:
            (replica,) = judge.weights().replicas
            assert judge.model().engine == "vllm"
    assert replica.loaded is not None
    assert (replica.loaded.version, replica.loaded.digest) == (2, checkpoint_digest(tmp_path / "llama/final"))
    for row in read_run(tmp_path)["llama"].steps:
        assert row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=0.05)
        assert row["sampling/sampling_logp_difference/mean"] < 0.05
