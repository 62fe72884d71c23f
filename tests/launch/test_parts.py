"""The launcher's parts alone: ports, restarts, plans, progress, what is shown."""

from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.launch.folder import ProcessState, RunFolder, State
from corl_trainer.launch.materialize import materialize
from corl_trainer.launch.plan import Plan, make_plan
from corl_trainer.launch.ports import Ports, PortTaken
from corl_trainer.launch.processes import Child, Restarts, last_lines
from corl_trainer.launch.progress import MemberProgress, line
from corl_trainer.launch.resume import resume_steps
from corl_trainer.launch.view import PlainView, TableView
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from corl.cohort import Cohort, load_cohort, load_heldout, load_problems
from corl.guard import Guard
from tests.launch.conftest import COHORT, Bench, alive, wait_for


@pytest.fixture
def ports() -> Any:
    ports = Ports()
    yield ports
    ports.close()


# Ports ---------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="ports are kept on Linux")
def test_a_reserved_port_is_ours_alone_again_and_again(ports: Ports) -> None:
    port = ports.take()
    with pytest.raises(OSError), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    for _ in range(2):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)  # reserved is not open


def test_a_taken_port_names_the_address(ports: Ports) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port} cannot be listened on: Address already in use"):
            ports.take("127.0.0.1", port)
    with pytest.raises(PortTaken):
        ports.take("192.0.2.1", 8000)


# Restarts ------------------------------------------------------------------------------------------------------------


def test_restarts_are_later_each_time_and_bounded() -> None:
    restarts = Restarts(4, first_s=1.0, longest_s=5.0)
    assert [restarts.pause(0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, None]


def test_a_healthy_run_is_forgiven() -> None:
    restarts = Restarts(1, healthy_s=60.0)
    assert restarts.pause(1.0) == 1.0
    assert restarts.pause(59.0) is None
    assert restarts.pause(60.0) == 1.0


@given(st.integers(0, 8), st.lists(st.floats(0, 100), max_size=40))
def test_no_more_than_the_limit_in_a_row(limit: int, ran: list[float]) -> None:
    restarts = Restarts(limit, healthy_s=50.0)
    in_a_row = 0
    for seconds in ran:
        in_a_row = 0 if seconds >= 50.0 else in_a_row
        pause = restarts.pause(seconds)
        assert (pause is None) == (in_a_row >= limit)
        in_a_row += pause is not None


# Processes -----------------------------------------------------------------------------------------------------------


def test_a_child_ends_with_all_that_it_started(tmp_path: Path) -> None:
    guard = Guard()
    child = Child(tmp_path / "log", guard)
    script = (
        "import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(os.environ['WORD'], p.pid, flush=True); sys.exit(7)"
    )
    try:
        child.start((sys.executable, "-c", script), {"WORD": "here"})
        codes: list[int | None] = []

        def ended() -> bool:
            codes.append(child.ended())
            return codes[-1] is not None

        wait_for(ended, "the child has ended")
        assert codes[-1] == 7
        assert child.pid is None
        word, pid = (tmp_path / "log").read_text().split()
        assert word == "here"
        wait_for(lambda: not alive(int(pid)), "so has its own child")
    finally:
        guard.close()


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none") == []
    (tmp_path / "log").write_bytes(b"x" * 50_000 + b"\n\nfirst\n\xff last \n\n")
    assert last_lines(tmp_path / "log", count=2) == ["first", "� last"]


# The run's copy ------------------------------------------------------------------------------------------------------


def copied(bench: Bench, **settings: Any) -> tuple[Cohort, Cohort]:
    cohort = load_cohort(bench.cohort, **settings)
    folder = bench.folder / "copy"
    folder.mkdir()
    materialize(cohort, folder)
    return cohort, load_cohort(folder / "cohort.yaml")


@pytest.mark.parametrize("reward", ["peer", "truth"])
def test_the_copy_means_the_same(bench: Bench, reward: Any) -> None:
    bench.write(
        COHORT.replace(
            "  train: {path: train.jsonl}\n",
            "  train: {path: train.jsonl, limit: 3}\n  heldout: {path: train.jsonl}\n"
            "  views: {other words: {path: train.jsonl}}\n",
        ).replace("models/b,", "models/b, view: other words,")
        + "preset: paper\nprompt: {template: \"Say:\\n{problem} 'now' 1e3\", system: 'on'}\nredis: redis://:x@host\n"
    )
    cohort, copy = copied(bench, reward=reward)
    left = {"problems", "members", "preset"}
    assert copy.model_dump(exclude=left) == cohort.model_dump(exclude=left)
    assert copy.members["b"].view == "other words"
    assert [copy.model_path(name) for name in "ab"] == [cohort.model_path(name) for name in "ab"]
    for view in ("original", "other words"):
        ids = load_problems(cohort).ids
        assert [load_problems(copy).text(key, view) for key in ids] == [
            load_problems(cohort).text(key, view) for key in ids
        ]
    assert (bench.folder / "copy" / "cohort.yaml").stat().st_mode & 0o777 == 0o600
    assert load_problems(copy) == load_problems(cohort)
    assert load_heldout(copy) == load_heldout(cohort)
    assert ("secret" in (bench.folder / "copy" / "problems" / "train.jsonl").read_text()) == (reward == "truth")


def test_the_copy_of_choice_problems(bench: Bench) -> None:
    bench.write(
        COHORT.replace("path: train.jsonl", "path: train.jsonl, columns: {options: choices}").replace(
            "problems:\n", "problems:\n  task: choice\n"
        )
    )
    row = {"problem_id": 1, "problem": "?", "choices": {"A": "red", "B": "green"}}
    (bench.folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    _, copy = copied(bench)
    assert load_problems(copy).options("1") == {"A": "red", "B": "green"}


# Plans ---------------------------------------------------------------------------------------------------------------


def planned(bench: Bench, ports: Ports, text: str = COHORT, **settings: Any) -> Plan:
    bench.write(text)
    folder = RunFolder(bench.folder / "run")
    cohort = load_cohort(bench.cohort)
    return make_plan(cohort, folder, ports, run="r", redis="redis://x", key="k", **settings)


def test_devices(bench: Bench, ports: Ports) -> None:
    text = COHORT.replace("models/a,", "models/a, devices: {judge: '0,1', trainer: '2, 3'}, replicas: 2,")
    plan = planned(bench, ports, text.replace("models/b,", "models/b, devices: {judge: '4,5'},"))
    seen = {spec.name: spec.env.get("CUDA_VISIBLE_DEVICES") for spec in (*plan.judges, *plan.trainers)}
    assert seen == {"judge-a-0": "0", "judge-a-1": "1", "judge-b": "4,5", "trainer-a": "2,3", "trainer-b": None}
    argv = {spec.name: spec.argv for spec in plan.trainers}
    assert argv["trainer-a"][:7] == (
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
    )  # fmt: skip
    assert argv["trainer-b"][:3] == (sys.executable, "-m", "corl_trainer")


def test_torchrun_takes_no_option_of_the_trainer_for_its_own(bench: Bench, ports: Ports) -> None:
    from torch.distributed.run import parse_args

    text = COHORT.replace("models/a,", "models/a, devices: {trainer: '2,3'},")
    [argv] = [spec.argv for spec in planned(bench, ports, text).trainers if spec.name == "trainer-a"]
    parsed = parse_args(list(argv[3:]))
    assert (parsed.nproc_per_node, parsed.training_script) == ("2", "corl_trainer")
    own = parsed.training_script_args
    assert own[own.index("--run") + 1] == "r"


def test_threads_are_shared_out(bench: Bench, ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    plan = planned(bench, ports)
    assert [(spec.env["OMP_NUM_THREADS"], spec.env["MKL_NUM_THREADS"]) for spec in plan.judges] == [("16", "3")] * 2


def test_secrets_are_in_no_command_line(bench: Bench, ports: Ports) -> None:
    plan = planned(bench, ports)
    for spec in (*plan.judges, *plan.trainers):
        assert spec.env["CORL_API_KEY"] == "k"
        assert "redis://x" not in spec.argv
        assert "k" not in spec.argv


def test_an_ipv6_address(bench: Bench, ports: Ports) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
            port = free.getsockname()[1]
    except OSError:
        pytest.skip("no IPv6 here")
    plan = planned(bench, ports, COHORT.replace("models/a,", f"models/a, url: 'http://[::1]:{port}',"))
    assert plan.judges[0].url == f"http://[::1]:{port}"
    assert plan.judges[0].argv[plan.judges[0].argv.index("--host") + 1] == "::1"


# Going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "steps", "words"),
    [
        ([2, 4, 6], [2, 4], {"a": 4, "b": 4}, "all members go on at step 4"),
        ([4, 6, 7], [4, 6, 8], {"a": 6, "b": 6}, "all members go on at step 6"),
        ([], [], {"a": 0, "b": 0}, "no checkpoint was taken: all members start anew"),
        ([8, 9], [2, 3], {"a": 9, "b": 3}, "go on alone: a at step 9, b at step 3"),
        ([8, 10], [2], {"a": 8, "b": 2}, "go on alone: a at step 8, b at step 2"),
        ([8, 10], [8, 10], {"a": 8, "b": 8}, "all members go on at step 8"),
        ([4], [], {"a": 4, "b": 0}, "go on alone: a at step 4, b at step 0"),
    ],
)
def test_where_members_go_on(bench: Bench, a: list[int], b: list[int], steps: dict[str, int], words: str) -> None:
    bench.write(COHORT.replace("steps: 6", "steps: 10"))
    folder = RunFolder(bench.folder / "run")
    for name, taken in (("a", a), ("b", b)):
        for step in taken:
            checkpoint = folder.member(name) / "checkpoints" / f"checkpoint-{step}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "complete.json").write_text("{}")
        # One that was being written when its process died does not count.
        (folder.member(name) / "checkpoints" / "checkpoint-5").mkdir(parents=True, exist_ok=True)
    found, where = resume_steps(load_cohort(bench.cohort), folder)
    assert found == steps
    assert where.endswith(words)


# Progress and what is shown ------------------------------------------------------------------------------------------

STEP = {
    "kind": "step",
    "step": 3,
    "reward/mean": 0.531,
    "votes/labeled": 0.92,
    "votes/agreement": 0.71,
    "seconds": {"rollouts": 0.5, "scores": 0.01, "update": 1.25, "step": 1.76},
}


def test_progress_follows_a_file_that_grows_and_starts_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    progress = MemberProgress("a", file)
    assert list(progress.read()) == []
    text = json.dumps({"kind": "start", "step": 0, "steps": 9, "incarnation": 4}) + "\n" + json.dumps(STEP)
    file.write_text(text)
    assert [record["kind"] for record in progress.read()] == ["start"]
    with file.open("a") as appended:
        appended.write('\nnot json\n[1]\n{"kind": "eval", "step": 4, "eval/pass@1": 0.5}\n')
        appended.write('{"kind": "warning", "step": 4}\n')
    assert [record["kind"] for record in progress.read()] == ["step", "eval", "warning"]
    assert (progress.step, progress.steps, progress.version, progress.begun) == (3, 9, "4:3", True)
    assert (progress.number("reward/mean"), progress.seconds("step")) == (0.531, 1.76)
    assert progress.warning == "step 4: "
    with file.open("a") as appended:
        appended.write(json.dumps({"kind": "start", "step": 2, "steps": 9}) + "\n")
    list(progress.read())
    assert progress.step == 2
    assert progress.evals == {}
    assert not progress.warning


def test_lines() -> None:
    progress = MemberProgress("a", Path("none"), steps=9)
    assert line(progress, STEP) == ("a 3/9  reward 0.531  labeled 92%  agreement 71%  1.8 s (rollouts 0.5, update 1.2)")
    held_out = {"kind": "eval", "step": 9, "eval/pass@1": 0.5, "eval/maj@8": 0.75, "eval/mean_tokens": 6.0}
    assert line(progress, held_out) == "a 9/9  held-out: pass@1 0.500  maj@8 0.750"
    assert line(progress, {"kind": "warning", "step": 2, "message": "spread is 0"}) == "a 2/9  warning: spread is 0"
    assert line(progress, {"kind": "start", "step": 0}) is None
    assert line(progress, {"kind": "step", "step": 1, "reward/mean": None, "seconds": {"step": "x"}}) == "a 1/9"


def test_the_table_has_a_row_for_each_member() -> None:
    processes = [
        ProcessState(name="judge-a", kind="judge", member="a", state="ready"),
        ProcessState(name="trainer-a", kind="trainer", member="a", state="restarting"),
        ProcessState(name="judge-b-0", kind="judge", member="b", state="ready"),
        ProcessState(name="judge-b-1", kind="judge", member="b", state="starting"),
    ]
    state = State(
        run="r", cohort_file="c", reward="peer", members=["a", "b"], steps=9, pid=1, started=0.0, processes=processes
    )
    progress = MemberProgress("a", Path("none"), steps=9, step=3, latest=STEP, warning="step 2: spread is 0")
    progress.evals = {0: {"eval/pass@1": 0.25}, 3: {"eval/pass@1": 0.5}}
    output = io.StringIO()
    with TableView(Console(file=output, force_terminal=True, width=80)) as view:
        view.say("[judge] is ready")
        view.update(state, [progress])
    shown = output.getvalue()
    assert "[judge] is ready" in shown
    row = next(text for text in shown.splitlines() if text.startswith("a "))
    for cell in ("ready", "restarting", "3/9", "0.531", "92%", "71%", "0.250 -> 0.500", "1.8"):
        assert cell in row
    assert "a: step 2: spread is 0" in shown
    assert "\u2026" not in shown, "80 columns hold it all"
    assert any(text.startswith("b ") and "1/2 ready" in text and "frozen" in text for text in shown.splitlines())


def test_plain_lines_carry_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView() as view:
        view.say("one\ntwo")
    lines = capsys.readouterr().out.splitlines()
    assert [text.split(" ", 1)[1] for text in lines] == ["one", "two"]
    assert all(len(text.split(":")) == 3 for text in lines)
