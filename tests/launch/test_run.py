"""`corl run` on stand-ins for judges and trainers: order, ends, faults, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from corl.cohort import load_cohort
from tests.launch.conftest import COHORT, Bench, Launched, alive, wait_for


def option(start: list[str], name: str) -> str | None:
    return start[start.index(name) + 1] if name in start else None


# To the end ----------------------------------------------------------------------------------------------------------


def test_a_run_to_the_end(bench: Bench) -> None:
    run = bench.run()
    assert run.wait() == 0, run.err
    state = run.state()
    assert (state.phase, state.reward, state.members, state.attempt) == ("done", "peer", ["a", "b"], 1)
    started = [start[0] for start in bench.started()]
    assert sorted(started[:2]) == ["judge-a", "judge-b"], "judges first"
    assert sorted(started[2:]) == ["trainer-a", "trainer-b"]
    assert {process.name for process in state.processes} == {"redis", "judge-a", "judge-b", "trainer-a", "trainer-b"}
    assert all(not alive(process.pid) for process in state.processes if process.pid is not None)
    assert "a 6/6  reward 0.500  labeled 90%  1.5 s (rollouts 0.5, update 1.0)" in run.out
    rows = [line.split() for line in run.out.splitlines()]
    assert ["a", "6", "0.250", "->", "0.750", "0.500", "->", "1.000", "0"] in rows
    assert not (run.folder.path / "api-key").exists()


def test_every_process_gets_what_it_needs(bench: Bench) -> None:
    run = bench.run()
    assert run.wait() == 0
    starts = {start[0]: start for start in bench.started()}
    folder = str(run.folder.path)
    assert starts["judge-a"][3] == f"{folder}/cohort.yaml"
    assert option(starts["judge-a"], "--host") == "127.0.0.1"
    assert option(starts["judge-a"], "--weights") == option(starts["trainer-a"], "--weights") == f"{folder}/weights"
    assert option(starts["judge-a"], "--run") == option(starts["trainer-b"], "--run") == run.state().run
    assert option(starts["trainer-a"], "--run-dir") == folder
    assert f"a=http://127.0.0.1:{option(starts['judge-a'], '--port')}" in starts["trainer-b"]
    assert f"b=http://127.0.0.1:{option(starts['judge-b'], '--port')}" in starts["trainer-b"]
    logs = {name: (run.folder.logs / f"judge-{name}.log").read_text().split() for name in "ab"}
    assert logs["a"] == logs["b"]
    assert len(logs["a"][1]) >= 32
    assert logs["a"][3].startswith("unix://")
    assert logs["a"][1].encode() not in b"".join(path.read_bytes() for path in run.folder.path.glob("*.*"))


def test_a_seed_goes_before_all_three_of_the_file(bench: Bench) -> None:
    bench.write(COHORT + "seed: 1\n")
    run = bench.run(seed=7)
    assert run.wait() == 0
    cohort = load_cohort(run.folder.cohort_file)
    assert (cohort.seed, cohort.training.seed, cohort.training.data_seed) == (7, 7, 7)


def test_the_runs_copy_holds_no_training_answer(bench: Bench) -> None:
    run = bench.run()
    assert run.wait() == 0
    texts = {path.name: path.read_text() for path in run.folder.path.rglob("*") if path.suffix in (".jsonl", ".yaml")}
    assert "0+1=" in texts["train.jsonl"]
    assert not any("secret" in text for text in texts.values())


def test_replicas(bench: Bench) -> None:
    bench.write(COHORT + "judge: {replicas: 2}\n")
    run = bench.run()
    assert run.wait() == 0
    names = sorted(process.name for process in run.state().processes if process.kind == "judge")
    assert names == ["judge-a-0", "judge-a-1", "judge-b-0", "judge-b-1"]
    ports = {option(start, "--port") for start in bench.started("judge-")}
    assert len(ports) == 4
    # Callers are spread over the replicas.
    used = {argument for start in bench.started("trainer-") for argument in start if argument.startswith("a=")}
    assert len(used) == 2


def test_a_frozen_member_has_no_trainer(bench: Bench) -> None:
    bench.write(COHORT.replace("models/b,", "models/b, frozen: true,"))
    run = bench.run()
    assert run.wait() == 0
    assert {start[0] for start in bench.started()} == {"judge-a", "judge-b", "trainer-a"}


def test_a_judge_elsewhere_is_not_started(bench: Bench) -> None:
    bench.write(COHORT.replace("models/b,", "models/b, frozen: true, url: 'http://gpu-host:8000',"))
    run = bench.run()
    assert run.wait() == 0
    assert {start[0] for start in bench.started()} == {"judge-a", "trainer-a"}
    assert "b=http://gpu-host:8000" in bench.started("trainer-a")[0]


def test_two_runs_at_once(bench: Bench) -> None:
    runs = [bench.run("one"), bench.run("two")]
    assert [run.wait() for run in runs] == [0, 0]
    ports = [option(start, "--port") for start in bench.started("judge-")]
    assert len(set(ports)) == 4
    assert runs[0].state().run != runs[1].state().run


def test_a_run_gets_a_folder_of_its_own_by_default(bench: Bench) -> None:
    assert bench.run(None).wait() == 0
    assert bench.run(None, reward="self", steps=3).wait() == 0
    names = sorted(path.name.rpartition("-")[0].rpartition("-")[0] for path in (bench.folder / "runs").iterdir())
    assert names == ["pair-peer", "pair-self"]


# Ending it -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_once_finishes_the_step_and_takes_a_checkpoint(bench: Bench, number: int) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 0.3, "save_every": 100} for name in "ab"}
    run = bench.run(steps=1000)
    wait_for(lambda: run.step("a") >= 2 and run.step("b") >= 2, "some steps")
    run.interrupt(number)
    assert run.wait() == 3
    assert run.state().phase == "stopped"
    assert f"go on with: corl run --resume --out {run.folder.path}" in run.out
    for name in "ab":
        assert (run.folder.member(name) / "checkpoints" / f"checkpoint-{run.step(name)}" / "complete.json").is_file()
    assert all(process.state == "ended" for process in run.state().processes if process.kind != "redis")


@pytest.mark.parametrize("watched", ["pipe", "terminal"])
def test_whoever_watched_goes_away(bench: Bench, watched: str) -> None:
    """As with `corl run | tee` and Ctrl-C, and with a terminal that is closed: still a checkpoint of each."""
    bench.control = {f"trainer-{name}": {"step_s": 0.3, "save_every": 100} for name in "ab"}
    ours, theirs = os.pipe() if watched == "pipe" else os.openpty()
    run = bench.run(steps=1000, output=theirs)
    os.close(theirs)
    wait_for(lambda: run.step("a") >= 2 and run.step("b") >= 2, "some steps")
    os.close(ours)
    steps = run.step("a")
    wait_for(lambda: run.step("a") >= steps + 3, "it goes on")
    run.interrupt(signal.SIGHUP if watched == "terminal" else signal.SIGINT)
    assert run.wait() == 3
    assert run.state().phase == "stopped"
    for name in "ab":
        assert (run.folder.member(name) / "checkpoints" / f"checkpoint-{run.step(name)}" / "complete.json").is_file()


def stopping_when_the_judge_dies(bench: Bench) -> Launched:
    run = bench.run(steps=1000)
    wait_for(lambda: len(bench.started("trainer-")) == 2, "both trainers have started")
    wait_for(run.running, "trainers run")
    run.interrupt()
    wait_for(lambda: run.state().phase == "stopping", "it is stopping")
    (bench.folder / "now").touch()
    return run


def test_a_judge_that_dies_while_trainers_finish_is_started_again(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"until_judge_restarts": "judge-b"} for name in "ab"}
    bench.control["judge-b"] = {"die_when": "now"}
    run = stopping_when_the_judge_dies(bench)
    assert run.wait() == 3
    assert len(bench.started("judge-b")) == 2
    assert run.step("a") == run.step("b") == 1, "the step was finished"


def test_a_judge_that_stays_dead_ends_the_wait_for_trainers(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 600} for name in "ab"}
    bench.control["judge-b"] = {"die_always_when": "now"}
    run = stopping_when_the_judge_dies(bench)
    assert run.wait() == 130
    assert "the trainers stop now" in run.out


def test_twice_stops_now(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 600} for name in "ab"}
    run = bench.run()
    wait_for(run.running, "trainers run")
    wait_for(lambda: len(bench.started("trainer-")) == 2, "both trainers have started")
    run.interrupt()
    wait_for(lambda: run.state().phase == "stopping", "it is stopping")
    run.interrupt()
    assert run.wait() == 130
    assert run.state().phase == "stopped"


def test_what_does_not_listen_is_killed(bench: Bench) -> None:
    bench.control = {"trainer-a": {"step_s": 600, "deaf": True}, "judge-b": {"deaf": True}}
    run = bench.run()
    wait_for(lambda: len(bench.started("trainer-")) == 2, "both trainers have started")
    run.interrupt()
    wait_for(lambda: run.state().phase == "stopping", "it is stopping")
    run.interrupt()
    assert run.wait() == 130
    assert "trainer-a does not end: killed" in run.out
    assert "judge-b does not end: killed" in run.out


def test_stopped_while_judges_start(bench: Bench) -> None:
    bench.control = {"judge-a": {"start_s": 600}}
    run = bench.run()
    wait_for(lambda: bench.started("judge-a"), "the judge is starting")
    run.interrupt()
    assert run.wait() == 3
    assert bench.started("trainer-") == []


def test_nothing_outlives_a_killed_launcher(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 600} for name in "ab"} | {"judge-a": {"deaf": True}}
    run = bench.run()
    wait_for(lambda: len(bench.started("trainer-")) == 2, "both trainers have started")
    redis = next(process.pid for process in run.state().processes if process.name == "redis")
    assert redis is not None
    run.process.kill()
    run.wait()
    wait_for(lambda: not any(map(alive, [*bench.pids(), redis])), "everything has ended with it")
    assert (run.state().phase, run.state().error) == ("failed", "its launcher was killed")


# Faults --------------------------------------------------------------------------------------------------------------


def test_a_killed_trainer_goes_on_at_its_last_checkpoint(bench: Bench) -> None:
    bench.control = {"trainer-a": {"die_at_step": 5}}
    run = bench.run()
    assert run.wait() == 0
    starts = bench.started("trainer-a")
    assert len(starts) == 2
    assert option(starts[1], "--resume-step") is None
    assert "trainer-a was ended by SIGKILL; it is started again" in run.out
    assert len(bench.started("trainer-b")) == 1
    assert next(process.restarts for process in run.state().processes if process.name == "trainer-a") == 1


def test_a_killed_judge_comes_back_at_its_address(bench: Bench) -> None:
    bench.control = {"judge-b": {"die_when": "now"}, "trainer-a": {"step_s": 0.2}, "trainer-b": {"step_s": 0.2}}
    run = bench.run(steps=12)
    wait_for(lambda: run.step("a") >= 2, "some steps")
    (bench.folder / "now").touch()
    assert run.wait() == 0
    starts = bench.started("judge-b")
    assert len(starts) == 2
    assert option(starts[0], "--port") == option(starts[1], "--port")
    assert run.out.count("judge-b is ready at ") == 2
    assert len(bench.started("trainer-")) == 2


def test_a_killed_redis_comes_back(bench: Bench) -> None:
    bench.control = {"trainer-a": {"step_s": 0.2}}
    run = bench.run(steps=12)
    wait_for(lambda: run.step("a") >= 2, "some steps")
    redis = next(process.pid for process in run.state().processes if process.name == "redis")
    assert redis is not None
    os.kill(redis, signal.SIGKILL)
    assert run.wait() == 0
    assert "redis has ended; it is started again" in run.out
    assert next(process.restarts for process in run.state().processes if process.name == "redis") == 1


def test_giving_up_says_which_why_and_how_to_go_on(bench: Bench) -> None:
    bench.control = {"trainer-a": {"exit_at_step": 3, "code": 4}, "trainer-b": {"step_s": 0.2}}
    run = bench.run(steps=1000)
    assert run.wait() == 1
    assert len(bench.started("trainer-a")) == 4
    assert "corl run: trainer-a ended with exit code 4 and was started again 3 times" in run.err
    assert "    something went wrong at the end" in run.err
    assert f"go on with: corl run --resume --out {run.folder.path}" in run.out
    state = run.state()
    assert (state.phase, state.error) == ("failed", "trainer-a ended with exit code 4 and was started again 3 times")
    last = run.step("b")
    assert (run.folder.member("b") / "checkpoints" / f"checkpoint-{last}" / "complete.json").is_file()


@pytest.mark.parametrize(("control", "starts"), [({"exit_at_start": True, "code": 1}, 1), ({"code": 5}, 1)])
def test_what_would_fail_again_is_not_tried_again(bench: Bench, control: dict[str, object], starts: int) -> None:
    bench.control = {"trainer-a": {"exit_at_step": 0, **control}, "trainer-b": {"step_s": 0.1}}
    run = bench.run(steps=1000)
    assert run.wait() == 1
    assert len(bench.started("trainer-a")) == starts


def test_a_judge_that_never_starts(bench: Bench) -> None:
    bench.control = {"judge-a": {"exit_at_start": True, "code": 1}}
    run = bench.run()
    assert run.wait() == 1
    assert "corl run: judge-a ended with exit code 1" in run.err
    assert "    judge-a cannot start" in run.err
    assert len(bench.started("judge-a")) == 1
    assert bench.started("trainer-") == []


def test_a_trainer_waits_for_what_failed_no_longer_than_it_must(bench: Bench) -> None:
    bench.control = {"trainer-a": {"exit_at_step": 0, "code": 5}, "trainer-b": {"step_s": 600}}
    run = bench.run()
    assert run.wait() == 1


def test_a_taken_port(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bench.write(COHORT.replace("models/b,", f"models/b, url: 'http://127.0.0.1:{port}',"))
        run = bench.run()
        assert run.wait() == 2
    assert f"127.0.0.1:{port} cannot be listened on" in run.err
    assert bench.started() == []
    assert run.state().phase == "failed"


def test_a_port_that_is_given_is_taken(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bench.write(COHORT.replace("models/b,", f"models/b, url: 'http://127.0.0.1:{port}',"))
    run = bench.run()
    assert run.wait() == 0
    assert option(bench.started("judge-b")[0], "--port") == str(port)


# Input that is wrong -------------------------------------------------------------------------------------------------


def test_a_bad_model_folder(bench: Bench) -> None:
    (bench.folder / "models" / "a" / "config.json").unlink()
    run = bench.run()
    assert run.wait() == 2
    assert "members.a.model: " in run.err
    assert not run.folder.path.exists()


def test_a_folder_is_never_written_over(bench: Bench) -> None:
    run = bench.run()
    assert run.wait() == 0
    before = {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()}
    again = bench.run()
    assert again.wait() == 2
    assert "holds a run already: go on with `corl run --resume" in again.err
    (bench.folder / "mine").mkdir()
    (bench.folder / "mine" / "notes.txt").write_text("x")
    other = bench.run("mine")
    assert other.wait() == 2
    assert "is not empty (it holds 'notes.txt')" in other.err
    assert sorted(path.name for path in (bench.folder / "mine").iterdir()) == ["notes.txt"]
    assert {path: path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_made(bench: Bench) -> None:
    (bench.folder / "file").write_text("")
    run = bench.run("file/run")
    assert run.wait() == 2
    assert "cannot be made: Not a directory" in run.err


def test_a_disk_that_is_full(bench: Bench) -> None:
    run = bench.run(shell="ulimit -f 0")
    assert run.wait() == 2
    assert f"{run.folder.path} cannot be written: " in run.err
    assert bench.started() == []


def test_nothing_to_train(bench: Bench) -> None:
    bench.write(COHORT.replace("engine: transformers", "engine: transformers, frozen: true"))
    run = bench.run()
    assert run.wait() == 2
    assert "every member is frozen" in run.err


# Going on ------------------------------------------------------------------------------------------------------------


def test_resumed_at_the_newest_common_step(bench: Bench) -> None:
    bench.control = {"trainer-a": {"exit_at_step": 7, "code": 5}, "trainer-b": {"step_s": 0.5, "save_every": 1}}
    run = bench.run(steps=10)
    assert run.wait() == 1
    first = run.state().run
    a = sorted(int(path.name[11:]) for path in (run.folder.member("a") / "checkpoints").iterdir())
    b = sorted(int(path.name[11:]) for path in (run.folder.member("b") / "checkpoints").iterdir())
    common = max(set(a) & set(b), default=None)
    bench.control = {}
    resumed = bench.run(resume=True, cohort_file=None)
    assert resumed.wait() == 0, resumed.err
    starts = {name: bench.started(f"trainer-{name}")[-1] for name in "ab"}
    if common is None:
        assert {option(starts["a"], "--resume-step"), option(starts["b"], "--resume-step")} == {
            str(max(a)),
            str(max(b, default=0)),
        }
    else:
        assert {option(start, "--resume-step") for start in starts.values()} == {str(common)}
    state = resumed.state()
    assert (state.phase, state.attempt) == ("done", 2)
    assert state.run != first
    assert resumed.step("a") == resumed.step("b") == 10


def test_resumed_without_a_checkpoint_starts_anew(bench: Bench) -> None:
    bench.control = {"judge-a": {"exit_at_start": True, "code": 1}}
    assert bench.run().wait() == 1
    bench.control = {}
    resumed = bench.run(resume=True)
    assert resumed.wait() == 0
    assert "no checkpoint was taken: all members start anew" in resumed.out


def test_a_finished_run_is_resumed_only_to_go_further(bench: Bench) -> None:
    assert bench.run().wait() == 0
    again = bench.run(resume=True)
    assert again.wait() == 2
    assert "all 6 steps are done; to go further, give more by --steps" in again.err
    further = bench.run(resume=True, steps=9)
    assert further.wait() == 0
    assert {option(bench.started(f"trainer-{name}")[-1], "--resume-step") for name in "ab"} == {"6"}
    assert further.step("a") == 9


def test_a_resumed_run_keeps_what_its_steps_were_about(bench: Bench) -> None:
    bench.control = {"trainer-a": {"exit_at_step": 3, "code": 5}}
    assert bench.run().wait() == 1
    other = bench.run(resume=True, reward="self")
    assert other.wait() == 2
    assert "reward is not what this run was started with (peer before, self now): start a new run" in other.err
    bench.write(COHORT.replace("problems_per_step: 2", "problems_per_step: 3"))
    assert bench.run(resume=True).wait() == 2
    bench.write(COHORT + "judge: {max_problems_in_flight: 3}\n")
    bench.control = {}
    settings = bench.run(resume=True)
    assert settings.wait() == 0
    assert "max_problems_in_flight: 3" in settings.folder.cohort_file.read_text()


def test_the_same_run_is_never_run_twice(bench: Bench) -> None:
    bench.control = {f"trainer-{name}": {"step_s": 0.5} for name in "ab"}
    run = bench.run(steps=1000)
    wait_for(run.running, "it runs")
    second = bench.run(resume=True)
    assert second.wait() == 2
    assert f"is being run by process {run.process.pid}" in second.err
    assert len(bench.started("judge-a")) == 1
    run.interrupt()
    assert run.wait() == 3


def test_resume_with_nothing_there(bench: Bench) -> None:
    run = bench.run(resume=True)
    assert run.wait() == 2
    assert "no run here" in run.err
    newest = bench.run(None, resume=True)
    assert newest.wait() == 2
    assert f"no run of {Path(bench.cohort)} under" in newest.err
