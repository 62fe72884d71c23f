"""What must hold between the fields of a cohort, beyond their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from corl.cohort_models import ORIGINAL, Cohort, Problems, ProblemSource
from corl.faults import nearest

__all__ = ["BrokenRule", "broken_rules"]

RESERVED = ("logs", "problems", "redis", "weights")
"""What lies in a run's folder beside a folder for each member."""
SHARED_BY_ALL = ("steps", "data_seed")
"""Training settings that fix which problems come at which step: the same for every member."""


class BrokenRule(NamedTuple):
    """`at` is the path of the field at fault."""

    at: tuple[str | int, ...]
    message: str


def broken_rules(cohort: Cohort) -> list[BrokenRule]:
    """All faults, in the order of the file's sections."""
    return [*_members(cohort), *_problems(cohort.problems, cohort), *_topology(cohort), *_places(cohort)]


def _members(cohort: Cohort) -> Iterator[BrokenRule]:
    views = [ORIGINAL, *cohort.problems.views]
    for name, member in cohort.members.items():
        at = ("members", name)
        if name in RESERVED:
            yield BrokenRule(at, f"{name!r} is a folder of a run beside those of its members: choose another name")
        if not member.model.strip():
            yield BrokenRule((*at, "model"), "is empty: give a folder or a hub id")
        if member.view not in views:
            yield BrokenRule((*at, "view"), f"no view {member.view!r} in problems.views; {nearest(member.view, views)}")
        if member.url is not None and (problem := _url_problem(member.url, ("http", "https"))):
            yield BrokenRule((*at, "url"), f"{member.url!r} {problem}, such as http://127.0.0.1:8101")
        if member.engine == "openai" and not member.frozen:
            message = "cannot take new weights: set `frozen: true`, or engine vllm or transformers"
            yield BrokenRule((*at, "engine"), message)
        for field in SHARED_BY_ALL:
            if field in member.training and member.training[field] != getattr(cohort.training, field):
                yield BrokenRule(
                    (*at, "training", field),
                    f"must be the same for all members, who meet at the same problems: set training.{field}",
                )
        try:
            cohort.training_for(name)
        except ValidationError as error:
            for detail in error.errors():
                message = f"{detail['msg']}; got {detail['input']!r}"
                yield BrokenRule((*at, "training", *detail["loc"]), message)
    urls: dict[str, str] = {}
    for name, member in cohort.members.items():
        if member.url is not None and (other := urls.setdefault(member.url.rstrip("/"), name)) != name:
            yield BrokenRule(("members", name, "url"), f"{member.url!r} is the address of {other!r} already")


def _problems(problems: Problems, cohort: Cohort) -> Iterator[BrokenRule]:
    sources = {("train",): problems.train} | {("views", name): source for name, source in problems.views.items()}
    if problems.heldout is not None:
        sources |= {("heldout",): problems.heldout}
    for where, source in sources.items():
        at = ("problems", *where)
        if (source.path is None) == (source.dataset is None):
            yield BrokenRule(at, "needs either `path` (JSON Lines) or `dataset` (a Hugging Face dataset)")
        elif source.path is not None and not cohort.resolve(source.path).is_file():
            remedy = "paths are relative to the cohort file"
            yield BrokenRule((*at, "path"), f"no such file: {str(cohort.resolve(source.path))!r}; {remedy}")
        if where in (("heldout",), ("train",)) and source.columns.answer is None:
            if where == ("heldout",):
                yield BrokenRule((*at, "columns", "answer"), "held-out problems need answers: name their column")
            elif cohort.reward == "truth":
                yield BrokenRule((*at, "columns", "answer"), "reward source truth needs answers: name their column")
    if ORIGINAL in problems.views:
        yield BrokenRule(("problems", "views", ORIGINAL), "is the name of problems.train: choose another")
    if problems.task == "choice" and not problems.options and not _own_options(problems.train):
        yield BrokenRule(
            ("problems", "task"), "choice needs `problems.options`, e.g. [A, B, C, D], or `columns.options`"
        )
    if problems.options and problems.task != "choice":
        yield BrokenRule(("problems", "options"), f"belongs to task choice; the task is {problems.task!r}")


def _own_options(source: ProblemSource) -> bool:
    return source.columns.options is not None


def _topology(cohort: Cohort) -> Iterator[BrokenRule]:
    topology, names, at = cohort.topology, list(cohort.members), ("topology",)
    if isinstance(topology, dict):
        yield from _explicit(topology, cohort)
    elif cohort.reward == "peer" and len(names) < 2 and cohort.trained():
        yield BrokenRule(
            at, f"{topology} of one: {names[0]!r} has no peer to judge it; add a member, or take reward self or truth"
        )
    if cohort.reward == "collective" and len(names) < 2:
        yield BrokenRule(("reward",), "collective needs two members or more; with one it is `self`")


def _explicit(topology: dict[str, list[str]], cohort: Cohort) -> Iterator[BrokenRule]:
    names = list(cohort.members)
    for pupil, teachers in topology.items():
        at = ("topology", pupil)
        if pupil not in names:
            yield BrokenRule(at, f"no member {pupil!r}; {nearest(pupil, names)}")
            continue
        if cohort.members[pupil].frozen:
            yield BrokenRule(at, f"{pupil!r} is frozen and learns from nobody: remove it here, or unfreeze it")
        for index, teacher in enumerate(teachers):
            if teacher not in names:
                yield BrokenRule((*at, index), f"no member {teacher!r}; {nearest(teacher, names)}")
            elif teacher == pupil:
                yield BrokenRule((*at, index), f"{pupil!r} judges itself: name a peer, or take reward self")
            elif teacher in teachers[:index]:
                yield BrokenRule((*at, index), f"{teacher!r} is named twice")
    if cohort.reward == "peer":
        for name in cohort.trained():
            if not topology.get(name):
                yield BrokenRule(("topology", name), f"{name!r} has no teacher: name one, or freeze it")


def _places(cohort: Cohort) -> Iterator[BrokenRule]:
    if cohort.redis is not None and (problem := _url_problem(cohort.redis, ("redis", "rediss", "unix"))):
        # Not shown: it may hold a password.
        yield BrokenRule(("redis",), f"{problem}, such as redis://127.0.0.1:6379/0 or unix:///run/redis.sock")


def _url_problem(url: str, schemes: tuple[str, ...]) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in schemes:
        return f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    if not parts.hostname and parts.scheme != "unix":
        return "names no host"
    if port == 0 or (parts.scheme == "unix" and not parts.path):
        return "names no place"
    return None
