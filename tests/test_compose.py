"""The compose file that `corl compose` writes, and the one at the top of the project."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from corl.cli import main
from corl.cohort import load_cohort
from corl.compose import compose_file

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "compose" / "cohort.yaml"


def test_the_default_file_is_the_output_for_the_two_member_example() -> None:
    written = compose_file(load_cohort(EXAMPLE), folder="examples/compose")
    remedy = "run: corl compose examples/compose/cohort.yaml -o docker-compose.yml"
    assert (ROOT / "docker-compose.yml").read_text() == written, remedy


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    content = yaml.safe_load((ROOT / "examples" / "arithmetic" / "ring.yaml").read_text())
    models = ROOT / "examples" / "arithmetic"
    for name in ("train", "heldout"):
        content["problems"][name]["path"] = str(models / content["problems"][name]["path"])
    content["problems"].pop("views", None)
    for member in content["members"].values():
        member["model"] = str(models / member["model"])
    first, second, third = content["members"].values()
    first["devices"] = {"judge": "0,1", "trainer": "2"}
    second["replicas"] = 2
    third["frozen"] = True
    path = tmp_path / "cohort.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_members_replicas_frozen_teachers_and_devices(ring: Path) -> None:
    cohort = load_cohort(ring)
    services = yaml.safe_load(compose_file(cohort))["services"]
    first, second, third = cohort.members
    judges = [f"judge-{name}" for name in cohort.members]
    assert set(services) == {"redis", *judges, f"trainer-{first}", f"trainer-{second}"}, (
        "a frozen member has no trainer"
    )
    assert services[f"judge-{second}"]["deploy"]["replicas"] == 2
    assert services[f"judge-{first}"]["environment"]["CUDA_VISIBLE_DEVICES"].endswith("_GPUS:-0,1}")
    assert services[f"trainer-{first}"]["environment"]["CUDA_VISIBLE_DEVICES"].endswith("_GPUS:-2}")
    for name in (first, second):
        trainer = services[f"trainer-{name}"]
        assert set(trainer["depends_on"]) == set(judges)
        assert [part for part in trainer["command"] if part.startswith(f"{third}=")] == [
            f"{third}=http://judge-{third}:8000"
        ]


def test_a_judge_elsewhere_and_many_replicas(ring: Path) -> None:
    content = yaml.safe_load(ring.read_text())
    first, second, third = content["members"]
    content["members"][first]["url"] = "http://127.0.0.1:8101"  # an address of this host means nothing in a container
    content["members"][second]["replicas"] = 12
    content["members"][third]["url"] = "https://judges.example.org/c"
    ring.write_text(yaml.safe_dump(content, sort_keys=False))
    services = yaml.safe_load(compose_file(load_cohort(ring)))["services"]
    assert set(services) == {"redis", f"judge-{first}", f"judge-{second}", f"trainer-{first}", f"trainer-{second}"}
    trainer = services[f"trainer-{first}"]
    assert set(trainer["depends_on"]) == {f"judge-{first}", f"judge-{second}"}
    assert {f"{first}=http://judge-{first}:8000", f"{third}=https://judges.example.org/c"} <= set(trainer["command"])
    assert services[f"judge-{second}"]["ports"][0].endswith(":-8110-8121}:8000"), "a port for each replica"


def test_only_judges_are_published_and_nothing_runs_with_privileges(ring: Path) -> None:
    services = yaml.safe_load(compose_file(load_cohort(ring)))["services"]
    ranges = set()
    for name, service in services.items():
        assert ("ports" in service) == name.startswith("judge-")
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        if name != "redis":
            assert service["environment"]["CORL_API_KEY"].startswith("${CORL_API_KEY:?"), "without a key nothing starts"
        ranges |= set(service.get("ports", ()))
    assert len(ranges) == 3, "published ranges do not clash"


def test_every_variable_is_explained(ring: Path) -> None:
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "docker-compose.cpu.yml").read_text()
    explained = (ROOT / ".env.example").read_text()
    for variable in set(re.findall(r"\$\{([A-Z_]+)", text)):
        assert re.search(rf"^(# )?{variable}=", explained, re.MULTILINE), variable


@pytest.mark.parametrize("overlays", [[], ["docker-compose.cpu.yml"]], ids=["gpu", "cpu"])
def test_docker_reads_the_files(overlays: list[str]) -> None:
    """As the client itself resolves them, where there is one; no engine is asked."""
    try:
        client = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    except OSError:
        client = None
    if client is None or client.returncode:
        pytest.skip("no docker client with the compose plugin here")
    files = [part for name in ["docker-compose.yml", *overlays] for part in ("-f", str(ROOT / name))]
    # Whatever a `.env` of this folder says.
    command = ["docker", "compose", "--env-file", os.devnull, *files, "config", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CORL_", "JUDGE_"))}
    without_key = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert without_key.returncode != 0
    assert "CORL_API_KEY" in without_key.stderr
    environment["CORL_API_KEY"] = "key"
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    services = json.loads(ended.stdout)["services"]
    for name, service in services.items():
        gpus = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert bool(gpus) == (name != "redis" and not overlays), name
        assert service["read_only"] is True
        if "judge" in name:
            assert service["ports"][0]["host_ip"] == "127.0.0.1"


def test_the_command_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "compose.yml"
    monkeypatch.setattr("sys.argv", ["corl", "compose", str(EXAMPLE.relative_to(ROOT)), "-o", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert out.read_text() == (ROOT / "docker-compose.yml").read_text()
