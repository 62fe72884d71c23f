"""What TRL's GRPOConfig takes: its fields with their types, and the names of schedules, optimizers and losses.

Read from the source, since importing TRL takes longer than everything else that is checked before a run.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from corl_trainer.stops import SettingsError

__all__ = ["check_values", "grpo_fields"]

CLASSES = (
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("transformers", "training_args.py", "TrainingArguments"),
)
"""The configuration and its bases in trl 1.16."""
ENUMS = {
    "lr_scheduler_type": ("transformers", "trainer_utils.py", "SchedulerType"),
    "optim": ("transformers", "training_args.py", "OptimizerNames"),
}
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
"""Those that GRPOTrainer of trl 1.16 computes; it refuses others only in its first update."""
NUMBERS: Mapping[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,)}
AT_LEAST_ZERO = ("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "beta", "epsilon")


@cache
def grpo_fields() -> Mapping[str, str]:
    """All fields of TRL's GRPOConfig, with their annotations. Raises ModuleNotFoundError without TRL."""
    found: dict[str, str] = {}
    for place in CLASSES:
        for item in _body(*place):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                annotation = ast.unparse(item.annotation)
                if "ClassVar" not in annotation:
                    found.setdefault(item.target.id, annotation)
    return found


def check_values(given: Mapping[str, Any]) -> None:
    """Raises SettingsError for a value under `training` that TRL would refuse late, or take for what it is not."""
    for name, value in given.items():
        where = f"training.{name} is {value!r}"
        _check_number(where, name, value)
        choices = LOSSES if name == "loss_type" else _choices(*ENUMS[name]) if name in ENUMS else None
        if choices is not None and value not in choices:
            close = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"take one of {', '.join(choices)}"
            raise SettingsError(f"{where}, which TRL does not know: {hint}")


def _check_number(where: str, name: str, value: Any) -> None:
    kind, *rest = grpo_fields().get(name, "").split(" | ")
    if kind not in NUMBERS or rest not in ([], ["None"]) or (value is None and rest):
        return
    if not isinstance(value, float | int) or type(value) not in NUMBERS[kind]:
        wanted = {"float": "a number", "int": "a whole number", "bool": "true or false"}[kind]
        raise SettingsError(f"{where}: write {wanted}")
    number = float(value)
    if not math.isfinite(number):
        raise SettingsError(f"{where}: write a finite number")
    if name in AT_LEAST_ZERO and number < 0:
        raise SettingsError(f"{where}: write 0 or more")


@cache
def _choices(package: str, file: str, kind: str) -> tuple[str, ...]:
    values = (item.value for item in _body(package, file, kind) if isinstance(item, ast.Assign))
    return tuple(value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def _body(package: str, file: str, kind: str) -> Iterator[ast.stmt]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    source = Path(spec.submodule_search_locations[0]) / file
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            yield from node.body
            return
    raise SettingsError(f"{source} holds no class {kind}: another release of {package} than this one was made for")
