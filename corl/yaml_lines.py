"""YAML with the line of every field, read by the rules of YAML 1.2's core schema.

PyYAML follows YAML 1.1, where `1e-6` is text, `on` and `no` are booleans and `1:30` is ninety; in a settings file each
of those is a silent mistake. https://yaml.org/spec/1.2.2/#103-core-schema
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from corl.errors import CohortError
from corl.faults import Fault

__all__ = ["Lines", "dump_yaml", "read_yaml"]

Lines = dict[tuple[str | int, ...], int]
"""From a path of keys and indexes to the line, from 1, where that entry begins."""

CORE_SCHEMA = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        return int(text, 16) if text.lower().startswith("0x") else int(text)


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would take for something else than text."""


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's
for _tag, _pattern, _first in CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """The mapping in a file, and where its entries are. Raises CohortError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CohortError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise CohortError(f"{path}: is a folder: give the file itself, such as {path / 'cohort.yaml'}") from error
    except UnicodeDecodeError as error:
        raise CohortError(f"{path}: is not text in UTF-8: a cohort file is YAML") from error
    except OSError as error:
        raise CohortError(f"{path}: cannot be read: {error.strerror}") from error
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: Lines = {}
        if node is not None:
            _walk(str(path), node, (), lines, frozenset())
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise CohortError(Fault(f"not YAML: {error.problem or error.context}", file=str(path), line=line)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CohortError(Fault(f"not YAML: {error}", file=str(path))) from error
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise CohortError(Fault("holds no mapping: a cohort file begins with `members:`", file=str(path), line=1))
    return data, lines


def dump_yaml(data: dict[str, Any]) -> str:
    """Text that `read_yaml` reads back as it is."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1000)


def _walk(file: str, node: yaml.Node, at: tuple[str | int, ...], lines: Lines, above: frozenset[int]) -> None:
    """Notes lines and refuses what PyYAML would take silently: a key given twice, and a node inside itself."""
    if id(node) in above:
        raise CohortError(Fault("an anchor holds itself", field=_dotted(at), file=file, line=node.start_mark.line + 1))
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault((*at, index), item.start_mark.line + 1)
            _walk(file, item, (*at, index), lines, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise CohortError(Fault("a key must be a plain word", field=_dotted(at), file=file, line=line))
            if key.tag == "tag:yaml.org,2002:merge":
                merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
                continue
            name = str(key.value)
            key.tag = "tag:yaml.org,2002:str"  # a member may be called 1 or null
            if name in seen:
                message = f"given twice, first in line {seen[name]}: remove one"
                raise CohortError(Fault(message, field=_dotted((*at, name)), file=file, line=line))
            seen[name] = line
            lines[(*at, name)] = line
            _walk(file, value, (*at, name), lines, above)
        for source in merged:
            below: Lines = {}
            _walk(file, source, at, below, above)
            for where, line in below.items():
                lines.setdefault(where, line)


def _dotted(at: tuple[str | int, ...]) -> str | None:
    return ".".join(map(str, at)) or None
