"""The manifests of deploy/kubernetes as kustomize builds them, and as they lie in the files."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
BUILDS = ("base", "overlays/cpu", "overlays/keda")
KEY, PASSWORD = "k" * 64, "p" * 64
Object = dict[str, Any]


def builder() -> list[str] | None:
    """The command that builds a folder: kubectl has kustomize in it."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else None


def built(name: str) -> list[Object]:
    """Every object of a build, with a filled-in secret.env. Skips the test where there is nothing to build with."""
    if builder() is None:
        pytest.skip("needs kubectl or kustomize on the PATH")
    return [dict(found) for found in _built(name)]


@functools.cache
def _built(name: str) -> list[Object]:
    command = builder()
    assert command is not None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kubernetes"
        shutil.copytree(FOLDER, copy)
        example = (copy / "base" / "secret.env.example").read_text()
        filled = example.replace("CORL_API_KEY=", f"CORL_API_KEY={KEY}").replace("PASSWORD=", f"PASSWORD={PASSWORD}")
        (copy / "base" / "secret.env").write_text(filled)
        run = subprocess.run([*command, str(copy / name)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return [found for found in yaml.safe_load_all(run.stdout) if found]


def written() -> list[Object]:
    """Every whole object that lies in a file, not built: for machines without kustomize."""
    found: list[Object] = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name not in ("kustomization.yaml", "cohort.yaml", "kind.yaml"):
            found += [document for document in yaml.safe_load_all(path.read_text()) if document]
    return found


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [found for found in of_kind(objects, kind) if found["metadata"]["name"] == name]
    return found


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """(name of the workload, pod template) of everything that runs."""
    for found in of_kind(objects, "Deployment", "StatefulSet", "Job"):
        yield found["metadata"]["name"], found["spec"]["template"]


def container(template: Object) -> Object:
    [only] = template["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def values(objects: list[Object], template: Object) -> dict[str, str]:
    """The container's variables as a pod would have them."""
    found: dict[str, str] = {}
    for variable in container(template)["env"]:
        source = variable.get("valueFrom", {})
        if "value" in variable:
            found[variable["name"]] = expanded(variable["value"], found)
        elif "fieldRef" in source:
            label = source["fieldRef"]["fieldPath"].removeprefix("metadata.labels['").removesuffix("']")
            found[variable["name"]] = template["metadata"]["labels"][label]
        elif "secretKeyRef" in source:
            secret = named(objects, "Secret", source["secretKeyRef"]["name"])
            found[variable["name"]] = decoded(secret["data"][source["secretKeyRef"]["key"]])
        else:
            configuration = named(objects, "ConfigMap", source["configMapKeyRef"]["name"])
            found[variable["name"]] = configuration["data"][source["configMapKeyRef"]["key"]]
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)`, as the kubelet replaces it in arguments and in later variables."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text


def decoded(text: str) -> str:
    import base64

    return base64.b64decode(text).decode()
