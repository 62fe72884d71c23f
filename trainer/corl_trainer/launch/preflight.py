"""What a trainer would refuse, found before anything is started."""

from __future__ import annotations

from pathlib import Path

from corl.cohort import Cohort, CohortError
from corl_trainer.settings import TrainerSettings, grpo_arguments
from corl_trainer.stops import SettingsError

__all__ = ["check_training"]


def check_training(cohort: Cohort) -> None:
    """Raises CohortError for settings of a member that its trainer would refuse; ModuleNotFoundError without TRL."""
    for name in cohort.trained():
        devices = cohort.members[name].devices.trainer
        ranks = len(devices.split(",")) if devices else 1
        judges = dict.fromkeys(cohort.members, "http://127.0.0.1:1")
        try:
            settings = TrainerSettings.build(cohort, name, run="check", run_dir=Path("runs"), judges=judges)
            # The file is what is asked about, not this machine: no device is looked for.
            on_cpu = settings.training.device == "cpu"
            grpo_arguments(settings, world_size=ranks, on_cpu=on_cpu)
        except SettingsError as error:
            raise CohortError(f"{cohort.path}: {error}") from error
