"""Trainers as processes that are killed, stopped, and run on two ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from corl_trainer.checkpoints import Checkpoints
from corl_trainer.schedule import Schedule
from corl_trainer.stops import ExitCode
from safetensors.torch import load_file

from corl.cohort import load_problems
from corl.weights import checkpoint_digest
from tests.trainer.conftest import Lab
from tests.trainer.fake_judge import FakeJudge, status
from tests.trainer.stack import cohort, ended, trainer_process, write_cohort

Labs = Callable[[], AbstractContextManager[Lab]]


def test_killed_anywhere_it_goes_on_as_undisturbed(make_lab: Labs) -> None:
    """SIGKILL while it waits for rollouts, and while its weights are being taken; each time it resumes alone."""
    with make_lab() as lab:
        assert lab.train(training__steps=5, training__save_every=1) is ExitCode.DONE
        undisturbed = lab.digests()
    with make_lab() as lab:
        file = write_cohort(lab.root / "cohort.yaml", training__steps=5, training__save_every=1, problems__heldout=None)
        log = lab.root / "trainer.log"
        deaths: list[tuple[FakeJudge, str, int]] = [
            (lab.llama, "rollouts", 1),
            (lab.llama, "weights", 2),
        ]
        for judge, route, after in deaths:
            process: list[subprocess.Popen[bytes]] = []

            def kill(body: dict[str, Any], at: list[subprocess.Popen[bytes]] = process) -> dict[str, Any]:
                os.killpg(at[0].pid, signal.SIGKILL)
                at[0].wait()
                return body

            judge.faults[route] = [lambda body: body] * after + [kill]
            with trainer_process(lab.command(file), log) as started:
                process.append(started)
                assert ended(started, log) == -signal.SIGKILL, log.read_text()[-3000:]
        with (lab.root / "run/llama/metrics.jsonl").open("a") as metrics:
            metrics.write('{"kind": "step", "st')  # torn by the kill
        with trainer_process(lab.command(file), log) as started:
            assert ended(started, log) == ExitCode.DONE, log.read_text()[-3000:]
        assert lab.digests() == undisturbed
        assert checkpoint_digest(lab.root / "run/llama/final") == undisturbed[5]
        assert lab.llama.incarnation == 3
        assert [row["step"] for row in lab.log().steps] == [1, 2, 3, 4, 5]
        # Before its first request each life served the weights that it resumed from.
        since: dict[int, set[int]] = {}
        for route, body in lab.llama.asked:
            if route == "weights":
                since.setdefault(body["incarnation"], set()).add(body["version"])
            if route == "rollouts":
                assert body["step"] in since[body["incarnation"]]
        assert not list((lab.root / "run/weights/run/llama").glob(".partial-*"))


@pytest.mark.parametrize("signals", [1, 2])
def test_asked_to_stop(lab: Lab, signals: int) -> None:
    """Once: the step is finished. Twice: it is not, and goes on from before it. Either way nothing is lost."""

    def stop(body: dict[str, Any]) -> dict[str, Any]:
        for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
            os.kill(os.getpid(), number)
        return body

    lab.llama.faults["rollouts"] = [lambda body: body, stop]
    whole: dict[str, Any] = {"training__steps": 4, "training__save_every": 4}
    assert lab.train(**whole) is ExitCode.REQUESTED
    done = 2 if signals == 1 else 1
    assert Checkpoints(lab.root / "run/llama/checkpoints").steps() == [done]
    end = lab.log().end
    assert end is not None
    assert end["code"] == 3
    assert lab.train(**whole) is ExitCode.DONE
    assert [row["step"] for row in lab.log().starts] == [0, done]
    assert sorted(lab.digests()) == [0, 1, 2, 3, 4]


def test_two_ranks(make_lab: Labs) -> None:
    """A group spans the ranks; they train as one does, and stop together when the main one meets trouble."""
    small: dict[str, Any] = {"rollouts__problems_per_step": 3, "training__steps": 3, "problems__heldout": None}
    with make_lab() as lab:
        assert lab.train(**small) is ExitCode.DONE
        alone = load_file(lab.root / "run/llama/final/model.safetensors")
        rewards = [row["reward/mean"] for row in lab.log().steps]
    with make_lab() as lab:
        file = write_cohort(lab.root / "cohort.yaml", **small, training__service_deadline_s=3, vote__wait_s=1)
        log = lab.root / "trainer.log"
        lab.qwen.faults["scores"] = [lambda body: body] + [status(503, "gone for lunch")] * 1000
        with trainer_process(lab.command(file), log, ranks=2) as process:
            assert ended(process, log) != 0
        said = log.read_text()
        assert "exitcode  : 4" in said, said[-3000:]
        # The other one's exit code is 4, or -15 where the launcher met it while it was ending.
        assert re.search("llama: rank 1 stops with the main one: .*gone for lunch", said), said[-3000:]
        checkpoint = Checkpoints(lab.root / "run/llama/checkpoints").folder(1)
        assert {"rng_state_0.pth", "rng_state_1.pth", "complete.json"} <= {path.name for path in checkpoint.iterdir()}

        lab.qwen.faults["scores"].clear()
        with trainer_process(lab.command(file), log, ranks=2) as process:
            assert ended(process, log) == 0, log.read_text()[-3000:]
        assert [len(body["problems"]) for body in lab.llama.requests("rollouts")] == [3, 3, 3, 3]
        assert [row["reward/mean"] for row in lab.log().steps] == rewards
        together = load_file(lab.root / "run/llama/final/model.safetensors")
        for name, tensor in alone.items():
            assert (tensor - together[name]).abs().max() < 2e-4, name


def test_a_rank_whose_completions_are_all_masked_does_not_stop_the_others(lab: Lab) -> None:
    """A collective on one rank alone would have the others wait until its timeout."""
    of = cohort()
    second = Schedule(load_problems(of).ids, of.training.data_seed, 4).problems(0)[2:]  # of the second rank
    lab.llama.answers = lambda problem, step, i: "1234567890" if problem in second else f"{i % 2:03d}"
    file = write_cohort(
        lab.root / "cohort.yaml", training__steps=1, training__mask_truncated_completions=True, problems__heldout=None
    )
    log = lab.root / "trainer.log"
    with trainer_process(lab.command(file), log, ranks=2) as process:
        assert ended(process, log) == 0, log.read_text()[-3000:]
    (row,) = lab.log().steps
    assert row["rollouts/truncated"] == 0.5
    assert 0.0 <= row["sampling/importance_sampling_ratio/clipped"] <= 1.0
