"""What is started for a cohort: commands, addresses and environments, decided before anything runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from corl.cohort import Cohort
from corl_trainer.launch.folder import RunFolder
from corl_trainer.launch.ports import Ports

__all__ = ["Plan", "Programs", "Spec", "make_plan"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
PATIENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"}
"""torchrun kills ranks 30 s after a SIGTERM, in the middle of a long step; the launcher has deadlines of its own."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What a judge, a trainer and the start of a trainer of several processes are."""

    judge: Sequence[str] = (sys.executable, "-m", "corl_judge")
    trainer: Sequence[str] = (sys.executable, "-m", "corl_trainer")
    ranks: Sequence[str] = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True, slots=True)
class Spec:
    """One process to be started. `first` are arguments of its first start only. `url` is a judge's."""

    name: str
    kind: Literal["judge", "trainer"]
    member: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    url: str | None = None
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`external` are judges that run elsewhere, by member."""

    judges: Sequence[Spec]
    trainers: Sequence[Spec]
    external: Mapping[str, str] = field(default_factory=dict)


def make_plan(
    cohort: Cohort,
    folder: RunFolder,
    ports: Ports,
    *,
    run: str,
    redis: str,
    key: str,
    resume: Mapping[str, int] | None = None,
    programs: Programs | None = None,
) -> Plan:
    """`cohort` is the run's own copy. `resume` maps members to the step that their trainers go on from.

    Raises PortTaken for an address of the cohort file that is in use.
    """
    programs = programs or Programs()
    weights = cohort.resolve(cohort.weights) if cohort.weights is not None else folder.weights
    common = {"CORL_API_KEY": key, "PYTHONUNBUFFERED": "1", **_threads(cohort)}
    judges: list[Spec] = []
    addresses: dict[str, list[str]] = {}
    external: dict[str, str] = {}
    for name, member in cohort.members.items():
        if (remote := member.remote_url) is not None:
            external[name] = remote
            addresses[name] = [remote]
            continue
        count = cohort.replicas(name)
        for number in range(count):
            host, port = _place(member.url if number == 0 else None, ports)
            label = f"judge-{name}" if count == 1 else f"judge-{name}-{number}"
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            addresses.setdefault(name, []).append(url)
            argv = (*programs.judge, str(folder.cohort_file), "--member", name, "--host", host, "--port", str(port))
            env = {**common, "CORL_REDIS": redis, **_devices(member.devices.judge, number, count)}
            options = ("--weights", str(weights), "--run", run)
            judges.append(Spec(label, "judge", name, (*argv, *options), env, folder.logs / f"{label}.log", url))
    trainers = []
    for number, name in enumerate(cohort.trained()):
        devices = cohort.members[name].devices.trainer
        ranks = len(devices.split(",")) if devices else 1
        # Without the `--` torchrun refuses `--run` as an abbreviation of options of its own.
        launcher = programs.trainer if ranks == 1 else (*programs.ranks, str(ranks), *programs.trainer[1:], "--")
        argv = (*launcher, str(folder.cohort_file), "--member", name, "--run", run)
        argv += ("--run-dir", str(folder.path), "--weights", str(weights))
        for other, urls in addresses.items():
            # Any replica answers for all: callers are spread over them, a trainer's own requests too.
            argv += ("--judge", f"{other}={urls[number % len(urls)]}")
        first = () if resume is None or name not in resume else ("--resume-step", str(resume[name]))
        env = {**common, **_devices(devices, 0, 1), **({} if ranks == 1 else PATIENT)}
        log = folder.logs / f"trainer-{name}.log"
        trainers.append(Spec(f"trainer-{name}", "trainer", name, argv, env, log, first=first))
    return Plan(judges, trainers, external)


def _place(url: str | None, ports: Ports) -> tuple[str, int]:
    if url is None:
        return "127.0.0.1", ports.take()
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    bound = "127.0.0.1" if host == "localhost" else host
    return bound, ports.take(bound, parts.port or 80)


def _devices(devices: str | None, number: int, count: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of one of `count` processes: their share of the list, or all of it if it has no shares."""
    if devices is None:
        return {}
    names = [name.strip() for name in devices.split(",")]
    share, rest = divmod(len(names), count)
    if share and not rest:
        names = names[number * share : (number + 1) * share]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)}


def _threads(cohort: Cohort) -> dict[str, str]:
    """As many threads as there are cores, over all processes: more of them only get in each other's way."""
    processes = len(cohort.trained()) + sum(cohort.replicas(name) for name in cohort.members)
    each = max(1, (os.cpu_count() or 1) // processes)
    return {name: os.environ.get(name, str(each)) for name in THREADS}
