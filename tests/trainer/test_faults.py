"""What a trainer does when services fail: retries, then one clear error, a checkpoint, and never a made-up reward."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.checkpoints import Checkpoints
from corl_trainer.stops import ExitCode, SettingsError

from tests.trainer.conftest import Lab
from tests.trainer.fake_judge import Fault, broken, status


def checkpoints(lab: Lab) -> Checkpoints:
    return Checkpoints(lab.root / "run/llama/checkpoints")


def failed_items(kind: str, count: int = 1) -> Fault:
    def change(body: dict[str, Any]) -> None:
        for item in body["items"][:count]:
            item |= {"status": "failed", "rewards": None, "vote": None, "answers": []}
            item["failure"] = {"kind": kind, "message": "the engine is down"}

    return broken(change)


def test_passing_trouble_is_waited_out(lab: Lab) -> None:
    """429, 503 and items without a verdict: training pauses and goes on by itself."""
    lab.llama.faults["rollouts"] = [status(429), status(503)]
    lab.llama.faults["weights"] = [status(502)]
    lab.qwen.faults["scores"] = [status(429), failed_items("engine", 2), failed_items("timeout")]
    assert lab.train() is ExitCode.DONE
    asked = lab.qwen.requests("scores")
    assert [len(body["items"]) for body in asked] == [4, 4, 2, 1, 4], "only what failed is asked again"
    assert {item["id"] for item in asked[2]["items"]} < {item["id"] for item in asked[1]["items"]}
    assert [row["step"] for row in lab.log().steps] == [1, 2]


WRONG: dict[str, tuple[str, str, Fault]] = {
    "another run": ("qwen", "scores", broken(lambda body: body.update(run="other"))),
    "another step": ("qwen", "scores", broken(lambda body: body.update(step=7))),
    "another member": ("qwen", "scores", broken(lambda body: body.update(member="other"))),
    "items swapped": ("qwen", "scores", broken(lambda body: body["items"].reverse())),
    "a reward too few": ("qwen", "scores", broken(lambda body: _scored(body)["rewards"].pop())),
    "a reward of NaN": ("qwen", "scores", broken(lambda body: _scored(body)["rewards"].__setitem__(0, "NaN"))),
    "a bad key": ("qwen", "scores", broken(lambda body: _scored(body)["vote"].update(key="?"))),
    "an invalid item": ("qwen", "scores", failed_items("invalid")),
    "a refusal": ("qwen", "scores", status(422, "no such member")),
    "rollouts of another member": ("llama", "rollouts", broken(lambda body: body.update(member="other"))),
    "a completion too few": ("llama", "rollouts", broken(lambda body: body["problems"][0]["completions"].pop())),
    "a token outside": (
        "llama",
        "rollouts",
        broken(lambda body: body["problems"][0]["completions"][0]["token_ids"].__setitem__(0, 10_000)),
    ),
    "older weights": (
        "llama",
        "rollouts",
        broken(lambda body: body["problems"][0].update(weights={"incarnation": 0, "version": 0, "digest": "x"})),
    ),
    "other prompt tokens": ("llama", "rollouts", broken(lambda body: body["problems"][0]["prompt_token_ids"].pop())),
}


def _scored(body: dict[str, Any]) -> Any:
    return next(item for item in body["items"] if item["status"] == "scored")


@pytest.mark.parametrize("case", WRONG)
def test_what_must_not_be_trained_on_stops_the_run(case: str, lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    who, route, fault = WRONG[case]
    judge = getattr(lab, who)
    judge.faults[route] = [fault]
    assert lab.train(training__service_deadline_s=4) is ExitCode.SERVICE_GONE
    said = capfd.readouterr().err
    assert judge.url in said or f"{who!r}" in said, "which service"
    assert "go on with: corl train --member llama" in said, "how to resume"
    assert f"--judge qwen={lab.qwen.url}" in said, "with the addresses that it had"
    assert lab.log().steps == [], "nothing was trained on"
    assert [u.version for u in lab.llama.pushed] == [0]


def test_a_teacher_that_stays_away(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """Retries to the deadline, a checkpoint of what is done, and one error that says what was answered."""
    lab.qwen.faults["scores"] = [lambda body: body] + [failed_items("engine")] * 1000
    assert lab.train(training__service_deadline_s=2, training__steps=3) is ExitCode.SERVICE_GONE
    said = capfd.readouterr().err
    assert "teacher 'qwen', scores of step 1: 1 of 4 problems failed (engine: the engine is down)" in said
    assert "after 2 s of retries" in said
    assert checkpoints(lab).steps() == [1]
    log = lab.log()
    assert log.end is not None
    assert log.end["code"] == 4
    assert len(log.steps) == 1


def test_weights_that_the_judge_cannot_load(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    lab.llama.load_fails = "tensor 'x' does not have the digest in the manifest"
    assert lab.train() is ExitCode.SERVICE_GONE
    assert "could not load version 0: tensor 'x' does not have the digest" in capfd.readouterr().err
    assert lab.llama.requests("rollouts") == []


def test_an_error_of_weights_before_these_is_not_theirs(lab: Lab) -> None:
    """A replica shows what it last failed to load until it has loaded what is desired now."""
    stale = {"state": "failed", "reload_error": "of an earlier trainer", "loaded": None}
    lab.llama.faults["loaded"] = [broken(lambda body: body["replicas"][0].update(stale))] * 2
    assert lab.train(training__steps=1) is ExitCode.DONE


def test_services_are_waited_for_at_the_start(lab: Lab) -> None:
    lab.qwen.ready = False
    threading.Timer(1.0, lambda: setattr(lab.qwen, "ready", True)).start()
    assert lab.train(training__steps=1) is ExitCode.DONE


def test_a_wrong_address_and_a_missing_key_are_said_at_once(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    lab.qwen.member = "mistral"
    assert lab.train() is ExitCode.USAGE
    assert "is the judge of member 'mistral', not of 'qwen'" in capfd.readouterr().err
    lab.qwen.member = "qwen"
    lab.qwen.faults["model"] = [status(401)]
    assert lab.train() is ExitCode.USAGE
    assert "set CORL_API_KEY" in capfd.readouterr().err


def test_a_newer_trainer_ends_the_older_one(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """Fenced: it stops, and writes no checkpoint into a folder that is another's now."""

    def newer(body: dict[str, Any]) -> dict[str, Any]:
        lab.llama.incarnation += 1
        return body

    lab.llama.faults["rollouts"] = [lambda body: body, newer]
    assert lab.train(training__steps=4, training__save_every=4) is ExitCode.FENCED
    assert "another trainer has taken over" in capfd.readouterr().err
    assert checkpoints(lab).steps() == []
    assert max(u.version for u in lab.llama.pushed) <= 2


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_full_disk_leaves_nothing_half_published(
    lab: Lab, steps_before: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """RLIMIT_FSIZE makes writes of weights fail as a full disk would."""
    import corl_trainer.publish as publish

    calls = []
    original = publish.SnapshotWriter._flush

    def flush(self: Any) -> None:
        calls.append(self.target.name)
        if len(set(calls)) <= steps_before:
            return original(self)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
        try:
            return original(self)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    import signal

    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setattr(publish.SnapshotWriter, "_flush", flush)
    try:
        assert lab.train() is ExitCode.ERROR
    finally:
        signal.signal(signal.SIGXFSZ, previous)
    assert f"weights of step {steps_before} could not be written" in capfd.readouterr().err
    folder = lab.root / "run/weights/run/llama"
    assert sorted(path.name for path in folder.iterdir()) == [f"v{v:08d}-i0001" for v in range(steps_before)]
    assert [u.version for u in lab.llama.pushed] == list(range(steps_before))


def test_a_checkpoint_that_is_not_whole_is_not_resumed_from(lab: Lab) -> None:
    assert lab.train(training__steps=2, training__save_every=1) is ExitCode.DONE
    first = lab.digests()
    (checkpoints(lab).folder(2) / "complete.json").unlink()
    (checkpoints(lab).folder(2) / "optimizer.pt").write_bytes(b"half")
    os.rename(lab.root / "run/llama/final", lab.root / "gone")
    assert lab.train(training__steps=2, training__save_every=1) is ExitCode.DONE
    assert [row["step"] for row in lab.log().starts] == [0, 1]
    assert lab.digests() == first


def test_resume_step_must_be_whole(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path)
    for step in (1, 2):
        found.folder(step).mkdir()
    found.complete(1, 1)
    with pytest.raises(SettingsError, match=r"--resume-step 2: .* there are: 1"):
        found.resume(2)
    assert found.folder(2).is_dir(), "nothing is deleted on a refusal"
    assert found.resume(None) == 1
    assert not found.folder(2).exists()
    assert found.resume(0) == 0
    assert not found.folder(1).exists()


def test_which_checkpoints_are_kept(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, keep=3, every=2)
    for step, best in [(2, 0.5), (3, None), (4, None), (6, None), (7, None), (8, None), (10, None), (11, None)]:
        found.folder(step).mkdir()
        found.complete(step, 1, best)
    assert found.steps() == [2, 6, 8, 10, 11], "the best, the last three regular ones, the newest"
    assert found.best() is not None
    assert found.resume(8) == 8
    assert found.steps() == [2, 6, 8]
