"""Both images and the whole stack on a Docker engine: `make test-docker`.

The nano cohort trains on CPU images, judge-a on vLLM and judge-b on transformers, while judge-b is scaled up and down
and containers die.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corl.client import JudgeClient
from corl.wire import ScoreItem, ScoresRequest
from tests.docker.stack import KEY, Stack, docker, ended_containers, engine, inspect, kill_inside, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3600)]
STEPS = 300


@pytest.fixture(scope="module", autouse=True)
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Built anew, on layers that are still true."""
    version = engine()
    if version is None:
        pytest.exit("no Docker engine with Compose answers here: the stack was NOT tried", returncode=1)
    stack = Stack("corl-test-build", tmp_path_factory.mktemp("build"), STEPS, 18100)
    stack.compose("build", "judge-a", "trainer-a")


@pytest.fixture(scope="module")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack("corl-test", tmp_path_factory.mktemp("stack"), STEPS, 18100)
    running.down()
    try:
        running.compose("up", "--detach")
        yield running
        if failed := [c for c in running.all_containers().values() if c["State"]["ExitCode"] not in (0, 143)]:
            print(running.compose("logs", "--tail", "80"), [c["Name"] for c in failed])
    finally:
        running.down()


def test_containers_run_without_root_on_a_read_only_file_system(stack: Stack) -> None:
    containers = stack.all_containers()
    assert len(containers) == 5
    for name, container in containers.items():
        settings = container["HostConfig"]
        assert settings["ReadonlyRootfs"], name
        assert settings["CapDrop"] == ["ALL"], name
        assert not settings["Privileged"], name
        if not container["State"]["Running"]:
            continue
        assert docker("exec", name, "id", "-u").strip() != "0", name
        tried = docker(
            "exec", name, "sh", "-c", "touch /root/x /usr/x /opt/x 2>&1; echo; find /opt /usr -newer /proc/1"
        )
        assert tried.count("Read-only file system") + tried.count("Permission denied") == 3, (name, tried)


def test_only_the_judges_are_reachable_and_only_with_the_key(stack: Stack) -> None:
    for name, container in stack.all_containers().items():
        ports = container["NetworkSettings"]["Ports"] or {}
        bound = {port: places for port, places in ports.items() if places}
        if "judge" in name:
            assert set(bound) == {"8000/tcp"}, name
            assert {place["HostIp"] for place in bound["8000/tcp"]} == {"127.0.0.1"}, name
        else:
            assert not bound, name
    until(lambda: stack.ready("judge-a"), "judge-a is ready")
    for service in ("judge-a", "judge-b"):
        (container,) = stack.containers(service)
        assert listening(container) <= {8000}, f"{service}: vLLM's own routes are not served"
        (url,) = stack.urls(service)
        for path in ("/v1/model", "/metrics"):
            assert httpx.get(url + path, timeout=30).status_code == 401
        for path in ("/v1/completions", "/generate", "/update_weights", "/collective_rpc"):
            assert httpx.post(url + path, json={}, timeout=30).status_code in (401, 404, 405)


def listening(container: str) -> set[int]:
    """Ports on which anything in the container listens, other than on loopback and Docker's own resolver."""
    ports = set()
    for line in docker("exec", container, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            address, _, port = fields[1].partition(":")
            if not (address.endswith("7F") or (address.endswith("01000000") and len(address) > 8)):
                ports.add(int(port, 16))
    return ports


def test_judges_are_scaled_and_killed_while_training(stack: Stack) -> None:
    until(lambda: stack.step("a") >= 3 and stack.step("b") >= 3, "both members train")

    stack.compose("up", "--detach", "--no-recreate", "--scale", "judge-b=3")
    urls = until(lambda: found if len(found := stack.ready("judge-b")) == 3 else [], "three replicas of judge-b")
    for url in urls:
        assert loaded_version(url) > 0, "a late replica has the current weights before it is ready"
    until(lambda: all(work_done(url) > 0 for url in urls), "every replica of judge-b takes work")
    assert stack.step("b") < STEPS, "all of this was in the middle of training"

    victim = stack.containers("judge-b")[0]
    before = stack.step("b")
    kill_inside(victim, "judge")
    until(lambda: inspect(victim)["RestartCount"] >= 1, "the killed judge is started again")
    until(lambda: stack.step("b") > before, "training goes on")

    (redis,) = stack.containers("redis")
    before = stack.step("b")
    kill_inside(redis, "redis-server")
    until(lambda: inspect(redis)["RestartCount"] >= 1, "the killed Redis is started again")
    until(lambda: stack.step("b") > before, "training goes on")

    before = stack.step("b")
    with ended_containers() as codes:
        stack.compose("up", "--detach", "--no-recreate", "--scale", "judge-b=1")
    assert list(codes.values()) == [0, 0], f"the removed replicas drained and ended by themselves: {codes}"
    assert len(stack.containers("judge-b")) == 1
    until(lambda: stack.step("b") > before, "the last replica does the work alone")
    assert stack.step("b") < STEPS, "all of this was in the middle of training"


def loaded_version(url: str) -> int:
    headers = {"authorization": f"Bearer {KEY}"}
    return int(httpx.get(f"{url}/v1/model", headers=headers, timeout=30).json()["weights"]["version"])


def work_done(url: str) -> float:
    text = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"}, timeout=30).text
    return sum(map(float, re.findall(r'^corl_work_items_total\{.*outcome="done".*\} (\S+)$', text, re.MULTILINE)))


def test_the_run_ends_with_its_table_and_its_report(stack: Stack, tmp_path: Path) -> None:
    stack.compose("wait", "trainer-a", "trainer-b")
    for member in "ab":
        (trainer,) = stack.containers(f"trainer-{member}", all_=True)
        state = inspect(trainer)
        assert (state["State"]["ExitCode"], state["RestartCount"]) == (0, 0), "no fault of a service ends a trainer"
    logs = "".join(docker("logs", stack.containers(f"trainer-{member}", all_=True)[0]) for member in "ab")
    for member in "ab":
        rows = re.findall(rf"^{member} +{STEPS} +(\S+) -> (\S+) +(\S+) -> (\S+) +(\d+)", logs, re.MULTILINE)
        assert rows, f"the trainer that ends last prints the table of both: {logs[-2000:]}"
        pass_before, pass_after, maj_before, maj_after = map(float, rows[-1][:4])
        assert pass_after > pass_before + 0.1
        assert maj_after > maj_before + 0.2
        assert rows[-1][4] == "0", "no label was used"
    (trainer,) = stack.containers("trainer-a", all_=True)
    docker("cp", f"{trainer}:/runs/run", str(tmp_path))
    assert (tmp_path / "run" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "<td>done</td>" in (tmp_path / "run" / "report.html").read_text()
    for member in "ab":
        text = (tmp_path / "run" / member / "metrics.jsonl").read_text()
        steps = [int(found) for found in re.findall(r'"kind": "step", "step": (\d+)', text)]
        assert steps == list(range(1, STEPS + 1)), "no step was lost or done twice"
        assert (tmp_path / "run" / member / "final" / "model.safetensors").is_file()


def test_a_judge_alone_serves_callers_elsewhere(stack: Stack, tmp_path: Path) -> None:
    alone = Stack("corl-test-alone", tmp_path, STEPS, 18130)
    try:
        alone.compose("up", "--detach", "redis", "judge-b")
        assert {name.rsplit("-", 1)[0] for name in alone.all_containers()} == {
            "corl-test-alone-redis",
            "corl-test-alone-judge-b",
        }
        (url,) = until(lambda: alone.ready("judge-b"), "judge-b is ready")
        with JudgeClient(url, api_key=KEY) as judge:
            item = ScoreItem(id="1", problem_id="1", prompt="21+11=", completions=["\\boxed{032}", "\\boxed{099}", "?"])
            (answer,) = judge.scores(ScoresRequest(items=[item])).items
        assert answer.status == "scored"
        assert answer.rewards == [1.0, 0.0, 0.0]

        alone.compose("up", "--detach", "--no-recreate", "--scale", "judge-b=2", "judge-b")
        until(lambda: len(alone.ready("judge-b")) == 2, "a second replica")
        with ended_containers() as codes:
            alone.compose("up", "--detach", "--no-recreate", "--scale", "judge-b=1", "judge-b")
        assert list(codes.values()) == [0], f"the removed replica drained and ended by itself: {codes}"
    finally:
        alone.down()
