"""A compose project that a test starts, and what it sees of it from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

ROOT = Path(__file__).parents[2]
FILES = ("docker-compose.yml", "docker-compose.cpu.yml")
KEY = "a-key-of-the-docker-tests"
DEADLINE_S = 900.0
T = TypeVar("T")


def engine() -> str | None:
    """Version of the Docker engine that answers; None where there is none, or no compose plugin."""
    try:
        for command in (["docker", "compose", "version"], ["docker", "version", "--format", "{{.Server.Version}}"]):
            found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            if found.returncode:
                return None
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip()


def until(look: Callable[[], T], what: str) -> T:
    """The first true value of `look`, which may fail while things start."""
    deadline = time.monotonic() + DEADLINE_S
    last: object = None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except (httpx.HTTPError, subprocess.CalledProcessError, ValueError, KeyError, IndexError) as error:
            last = error
        time.sleep(1.0)
    raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what} ({last})")


@dataclass
class Stack:
    """The compose files of the project, with the nano cohort in a folder of the test's own."""

    name: str
    folder: Path
    steps: int
    first_port: int
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Copies the cohort, so that it may have more steps, and mounts the copy."""
        cohort = self.folder / "cohort"
        shutil.copytree(ROOT / "examples" / "arithmetic", cohort)
        settings = yaml.safe_load((cohort / "docker.yaml").read_text())
        settings["training"]["steps"] = self.steps
        (cohort / "docker.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        services = [f"{kind}-{name}" for kind in ("judge", "trainer") for name in "ab"]
        mounts = {name: {"volumes": [f"{cohort}:/cohort:ro"]} for name in services}
        (self.folder / "mount.yml").write_text(yaml.safe_dump({"services": mounts}))
        first = self.first_port
        self.environment = {
            **os.environ,
            "CORL_API_KEY": KEY,
            "JUDGE_A_PORTS": f"{first}-{first + 9}",
            "JUDGE_B_PORTS": f"{first + 10}-{first + 19}",
        }

    # Commands --------------------------------------------------------------------------------------------------------

    def compose(self, *arguments: str, check: bool = True, timeout: float = 3000) -> str:
        """Standard output of `docker compose ...`; what it says of its progress goes to the test's own."""
        files = [part for file in FILES for part in ("-f", str(ROOT / file))]
        command = [
            "docker",
            "compose",
            "--env-file",
            os.devnull,
            "-p",
            self.name,
            "--project-directory",
            str(ROOT),
            *files,
        ]
        command += ["-f", str(self.folder / "mount.yml"), *arguments]
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=self.environment, timeout=timeout, check=False
        )
        if check and ended.returncode:
            raise subprocess.CalledProcessError(ended.returncode, command, ended.stdout)
        return ended.stdout

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "20", check=False)

    def containers(self, service: str, *, all_: bool = False) -> list[str]:
        return self.compose("ps", *(["--all"] if all_ else []), "--quiet", service).split()

    def all_containers(self) -> dict[str, dict[str, Any]]:
        """What `docker inspect` says of each, by its name."""
        found = json.loads(docker("inspect", *self.compose("ps", "--all", "--quiet").split()))
        return {container["Name"].lstrip("/"): container for container in found}

    # From outside ----------------------------------------------------------------------------------------------------

    def urls(self, service: str) -> list[str]:
        """Addresses on this host of every replica, oldest first."""
        return [
            f"http://{docker('port', container, '8000/tcp').split()[0]}"
            for container in self.containers(service)
            if inspect(container)["State"]["Running"]
        ]

    def ready(self, service: str) -> list[str]:
        """Addresses of the replicas that are ready."""
        return [url for url in self.urls(service) if httpx.get(f"{url}/readyz", timeout=10).status_code == 200]

    def metrics(self, member: str) -> list[dict[str, Any]]:
        """Records that a trainer has written so far."""
        trainer = self.containers(f"trainer-{member}", all_=True)[0]
        text = docker("exec", trainer, "cat", f"/runs/run/{member}/metrics.jsonl")
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def step(self, member: str) -> int:
        return max((row["step"] for row in self.metrics(member) if row["kind"] == "step"), default=0)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=600, check=True).stdout


def inspect(container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return found


@contextmanager
def ended_containers() -> Iterator[dict[str, int]]:
    """Exit codes, by name, of the containers that end within; filled at its end."""
    codes: dict[str, int] = {}
    since = time.time()
    yield codes
    shown = "{{.Actor.Attributes.name}} {{.Actor.Attributes.exitCode}}"
    between = ["--since", f"{since:.3f}", "--until", f"{time.time():.3f}", "--filter", "event=die"]
    for line in docker("events", *between, "--format", shown).splitlines():
        name, code = line.split()
        codes[name] = int(code)


def kill_inside(container: str, word: str) -> None:
    """SIGKILL, from inside, to the processes whose command line has `word`: after `docker kill`, which counts as a stop
    on request, no restart policy applies. Process 1 is docker's own init."""
    script = f"""
    for p in /proc/[0-9]*; do
        pid=${{p#/proc/}}
        [ "$pid" = 1 ] || [ "$pid" = $$ ] && continue
        if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '{word}'; then kill -9 "$pid" && echo killed; fi
    done"""
    assert "killed" in docker("exec", container, "sh", "-c", script), f"no {word!r} in {container}"
