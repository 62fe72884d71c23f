"""A Docker Compose file for a cohort: redis, a judge and a trainer for each member, shared volumes.

The file is for GPU hosts; `docker-compose.cpu.yml` shows an overlay for a host without. Compose file reference:
https://docs.docker.com/reference/compose-file/
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import yaml

from corl.cohort import Cohort

__all__ = ["compose_file"]

HEADER = """\
# Cohort {name}: {members}.
# Written by `corl compose {file}`; change the cohort file and write it again.
#
#   cp .env.example .env                # set CORL_API_KEY there; every variable is explained in it
#   docker compose up -d                # redis, then judges, then trainers
#   docker compose logs -f {follow}
#   docker compose up -d --scale judge-{last}=3 --no-recreate   # more replicas of one judge, while training runs
#   docker compose up -d redis judge-{last}                     # a judge alone, for trainers elsewhere
#
# Only the judges' authenticated API is published, on loopback unless JUDGE_BIND says otherwise.
"""
PORT = 8000
HARDENED: dict[str, Any] = {
    "read_only": True,
    "tmpfs": ["/tmp:exec"],  # compilers of kernels write and load libraries there
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "init": True,
}
READY = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/readyz', timeout=5)"


def compose_file(cohort: Cohort, *, context: str = ".", folder: str | None = None) -> str:
    """YAML text of the compose file.

    `context` is where the Dockerfiles' build context lies and `folder` the cohort file's folder, both relative to the
    place the compose file is put; by default the cohort file lies beside it.
    """
    file = PurePosixPath(cohort.path.name if cohort.path is not None else "cohort.yaml")
    where = str(PurePosixPath(folder or "."))
    members = list(cohort.members)
    services: dict[str, Any] = {"redis": _redis()}
    for index, name in enumerate(members):
        if cohort.members[name].remote_url is not None:
            continue  # it runs elsewhere
        services[f"judge-{name}"] = _judge(cohort, name, index, context, where, file)
    for index, name in enumerate(cohort.trained()):
        services[f"trainer-{name}"] = _trainer(cohort, name, index, context, where, file)
    document = {
        "name": "corl-" + cohort.name.lower().replace(".", "-"),
        "services": services,
        "volumes": {"redis": None, "weights": None, "runs": None, "models": None},
    }
    trained = cohort.trained()
    header = HEADER.format(
        name=cohort.name,
        members=", ".join(members),
        file=file if where == "." else f"{where}/{file}",
        follow=" ".join(f"trainer-{name}" for name in trained) or f"judge-{members[0]}",
        last=members[-1],
    )
    return header + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=False)


def _redis() -> dict[str, Any]:
    return {
        "image": "${REDIS_IMAGE:-redis:7-alpine}",
        # noeviction: a queue must refuse rather than forget; the append-only file keeps jobs over a restart.
        "command": ["redis-server", "--appendonly", "yes", "--maxmemory-policy", "noeviction", "--dir", "/data"],
        "volumes": ["redis:/data"],
        "healthcheck": {
            "test": ["CMD", "redis-cli", "-e", "ping"],  # -e: an error reply, as while loading, is no health
            "interval": "5s",
            "timeout": "3s",
            "retries": 12,
        },
        "restart": "unless-stopped",
        "user": "redis",
        **HARDENED,
    }


def _judge(cohort: Cohort, name: str, index: int, context: str, where: str, file: PurePosixPath) -> dict[str, Any]:
    variable = f"JUDGE_{_variable(name)}"
    devices = cohort.members[name].devices.judge
    command = ["judge", f"/cohort/{file}", "--member", name, "--host", "0.0.0.0", "--port", str(PORT)]
    first = 8100 + sum(_ports(cohort, other) for other in list(cohort.members)[:index])
    published = f"{first}-{first + _ports(cohort, name) - 1}"
    return {
        "image": "${CORL_JUDGE_IMAGE:-corl-judge}",
        "build": _build(context, "judge", "JUDGE_BASE", "vllm/vllm-openai:v0.33.0"),
        "command": [*command, "--weights", "/weights", "--log-format", "json"],
        "environment": {
            **_environment(),
            "CORL_REDIS": "redis://redis:6379",
            "CUDA_VISIBLE_DEVICES": f"${{{variable}_GPUS:-{devices if devices is not None else index}}}",
        },
        "volumes": _volumes(where, "weights:/weights:ro"),
        "ports": [f"${{JUDGE_BIND:-127.0.0.1}}:${{{variable}_PORTS:-{published}}}:{PORT}"],
        "depends_on": {"redis": {"condition": "service_healthy"}},
        "healthcheck": {
            "test": ["CMD", "python", "-c", READY],
            "interval": "10s",
            "timeout": "10s",
            "retries": 6,
            "start_period": "900s",
            "start_interval": "2s",
        },
        "restart": "unless-stopped",
        "stop_grace_period": "90s",
        "shm_size": "2gb",
        "deploy": {"replicas": cohort.replicas(name), **_gpus()},
        **HARDENED,
    }


def _trainer(cohort: Cohort, name: str, index: int, context: str, where: str, file: PurePosixPath) -> dict[str, Any]:
    variable = f"TRAINER_{_variable(name)}"
    devices = cohort.members[name].devices.trainer
    command = ["--num_machines", "1", "--", f"/cohort/{file}", "--member", name, "--run", "${CORL_RUN_NAME:-run}"]
    command += ["--run-dir", "/runs/${CORL_RUN_NAME:-run}", "--weights", "/weights", "--report"]
    for other, member in cohort.members.items():
        command += ["--judge", f"{other}={member.remote_url or f'http://judge-{other}:{PORT}'}"]
    waits = {
        f"judge-{other}": {"condition": "service_healthy"}
        for other, member in cohort.members.items()
        if member.remote_url is None
    }
    return {
        "image": "${CORL_TRAINER_IMAGE:-corl-trainer}",
        "build": _build(context, "trainer", "TRAINER_BASE", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        # A process for each GPU of the service.
        "entrypoint": ["python", "-m", "corl_trainer.accelerated"],
        "command": command,
        "environment": {
            **_environment(),
            "CUDA_VISIBLE_DEVICES": f"${{{variable}_GPUS:-{devices if devices is not None else index}}}",
        },
        "volumes": _volumes(where, "weights:/weights", "runs:/runs"),
        "depends_on": waits,
        # Ends with 0 when all steps are done; a crash resumes at the last checkpoint.
        "restart": "on-failure:10",
        "stop_grace_period": "300s",
        "shm_size": "2gb",
        "deploy": _gpus(),
        **HARDENED,
    }


def _ports(cohort: Cohort, name: str) -> int:
    """How many are published: each replica takes one, and there is room to scale."""
    return max(10, cohort.replicas(name))


def _build(context: str, image: str, variable: str, base: str) -> dict[str, Any]:
    dockerfile = f"docker/{image}.Dockerfile"
    return {"context": context, "dockerfile": dockerfile, "args": {"BASE": f"${{{variable}:-{base}}}"}}


def _environment() -> dict[str, str]:
    return {
        "CORL_API_KEY": "${CORL_API_KEY:?set it in .env: the key of the judges' API}",
        "HF_TOKEN": "${HF_TOKEN:-}",
        "HF_HUB_OFFLINE": "${HF_HUB_OFFLINE:-0}",
    }


def _volumes(where: str, *own: str) -> list[str]:
    mount = where if where.startswith((".", "/")) else f"./{where}"
    return [f"{mount}:/cohort:ro", "models:/models", *own]


def _gpus() -> dict[str, Any]:
    device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _variable(member: str) -> str:
    return member.upper().replace("-", "_")


class _Dumper(yaml.SafeDumper):
    """Block style but for short lists of plain words, which read better on one line; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def _list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.nodes.SequenceNode:
    flow = bool(data) and all(isinstance(item, str) for item in data) and sum(map(len, data)) < 80
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _nothing(dumper: yaml.SafeDumper, data: None) -> yaml.nodes.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:null", "")


_Dumper.add_representer(list, _list)
_Dumper.add_representer(type(None), _nothing)
