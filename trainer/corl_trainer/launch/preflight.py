"""What a trainer would refuse, found before anything is started: are the fields under `training` ones that TRL takes?

GRPOConfig's fields are read from its source, since importing TRL takes longer than everything else that is checked.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from corl.cohort import Cohort, CohortError
from corl_trainer.settings import TrainerSettings, grpo_arguments
from corl_trainer.stops import SettingsError

__all__ = ["check_training", "grpo_fields"]

CLASSES = (
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("transformers", "training_args.py", "TrainingArguments"),
)
"""The configuration and its bases in trl 1.16."""


def check_training(cohort: Cohort) -> None:
    """Raises CohortError for settings of a member that its trainer would refuse; ModuleNotFoundError without TRL."""
    fields = grpo_fields()
    for name in cohort.trained():
        devices = cohort.members[name].devices.trainer
        ranks = len(devices.split(",")) if devices else 1
        judges = dict.fromkeys(cohort.members, "http://127.0.0.1:1")
        try:
            settings = TrainerSettings.build(cohort, name, run="check", run_dir=Path("runs"), judges=judges)
            # The file is what is asked about, not this machine: no device is looked for.
            on_cpu = settings.training.device == "cpu"
            grpo_arguments(settings, world_size=ranks, on_cpu=on_cpu, fields=fields)
        except SettingsError as error:
            raise CohortError(f"{cohort.path}: {error}") from error


@cache
def grpo_fields() -> set[str]:
    """Names of all fields of TRL's GRPOConfig."""
    return {name for package, file, kind in CLASSES for name in _fields(package, file, kind)}


def _fields(package: str, file: str, kind: str) -> set[str]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no module named {package!r}", name=package)
    source = Path(spec.submodule_search_locations[0]) / file
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            annotated = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            return {
                item.target.id
                for item in annotated
                if isinstance(item.target, ast.Name) and "ClassVar" not in ast.unparse(item.annotation)
            }
    raise CohortError(f"{source} holds no class {kind}: another release of {package} than this one was made for")
