"""What the check needs beside torch and transformers: followed through the metadata of what is installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["EXTRAS", "LEFT_OUT", "closure", "direct", "missing", "project_requirements"]

ROOT = Path(__file__).parents[2]
EXTRAS = ("judge", "trainer", "local")
LEFT_OUT = frozenset({"matplotlib", "peft"})
"""Of these extras, what the check can do without: it draws nothing and trains no adapter."""


def project_requirements(extras: Iterable[str] = EXTRAS) -> list[str]:
    """The project's requirements, as pyproject.toml writes them, without those that the check can do without."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [line for line in lines if _canonical(Requirement(line).name) not in LEFT_OUT]


def closure(roots: Iterable[str], *, without: Iterable[str] = (), target: Mapping[str, str] | None = None) -> list[str]:
    """Names of the distributions that the requirements `roots` come to, sorted, by the metadata of this environment.

    `target` overrides environment markers (PEP 508), e.g. python_version; `without` are names that are not followed.
    Raises PackageNotFoundError for one that is not installed here.
    """
    found: set[str] = set()
    stopped = {_canonical(name) for name in without}
    waiting = [(line, "") for line in roots]
    while waiting:
        line, extra = waiting.pop()
        name, extras = _applies(line, extra, target or {})
        if name is None or name in stopped or (name in found and not extras):
            continue
        found.add(name)
        for required in distribution(name).requires or []:
            waiting += [(required, wanted) for wanted in ("", *extras)]
    return sorted(found)


def missing(roots: Iterable[str]) -> list[str]:
    """What is not installed here, or not in the version asked for, of `roots` and of all that they require."""
    from packaging.requirements import Requirement

    faults: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [(line, "corl") for line in roots]
    while waiting:
        line, asker = waiting.pop()
        name, _ = _applies(line, "", {})
        if name is None:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            faults[f"{line.split(';')[0].strip()} (for {asker}) is not installed"] = None
            continue
        if not Requirement(line).specifier.contains(installed.version, prereleases=True):
            faults[f"{line.split(';')[0].strip()} (for {asker}): {installed.version} is installed"] = None
        if name not in seen:
            seen.add(name)
            waiting += [(required, name) for required in installed.requires or []]
    return sorted(faults)


def direct(name: str) -> Iterator[str]:
    """Names that an installed distribution requires itself."""
    for line in distribution(name).requires or []:
        found, _ = _applies(line, "", {})
        if found is not None:
            yield found


def _applies(line: str, extra: str, target: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """(canonical name, extras) of a requirement, or (None, ()) where its marker does not hold."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate({**target, "extra": extra}):
        return None, ()
    return _canonical(requirement.name), tuple(requirement.extras)


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
