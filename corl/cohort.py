"""What a cohort is: cohort.yaml read and checked, and its problems. `docs/cohort.md` lists every field."""

from corl.cohort_file import load_cohort
from corl.cohort_models import (
    ORIGINAL,
    Cohort,
    Columns,
    Devices,
    EngineName,
    JudgeSettings,
    LoraSettings,
    Member,
    Problems,
    ProblemSource,
    RewardSource,
    RolloutSettings,
    TrainingSettings,
    VotePolicy,
)
from corl.errors import CohortError
from corl.faults import Fault
from corl.problems import HeldOut, ProblemSet, load_heldout, load_problems

__all__ = [
    "ORIGINAL",
    "Cohort",
    "CohortError",
    "Columns",
    "Devices",
    "EngineName",
    "Fault",
    "HeldOut",
    "JudgeSettings",
    "LoraSettings",
    "Member",
    "ProblemSet",
    "ProblemSource",
    "Problems",
    "RewardSource",
    "RolloutSettings",
    "TrainingSettings",
    "VotePolicy",
    "load_cohort",
    "load_heldout",
    "load_problems",
]
