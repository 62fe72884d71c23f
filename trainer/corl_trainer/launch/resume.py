"""Where a run goes on: each member's step, from the checkpoints that are whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corl.cohort import Cohort
from corl_trainer.checkpoints import Checkpoints
from corl_trainer.launch.folder import RunFolder

__all__ = ["resume_steps"]


def resume_steps(cohort: Cohort, folder: RunFolder) -> tuple[dict[str, int], str]:
    """The step at which each trained member goes on, and that in words.

    The newest step of which every member has a checkpoint, so that all meet at the same problems again. Where they have
    none in common (a cohort whose members had drifted apart), each goes on alone at its own newest one; but not at its
    last step, since its judge has its weights only from a trainer that publishes them.
    """
    found = {name: _steps(folder, name, cohort) for name in cohort.trained()}
    common = _common(found)
    if common is not None:
        return dict.fromkeys(found, common), f"all members go on at step {common}"
    if not any(found.values()):
        return dict.fromkeys(found, 0), "no checkpoint was taken: all members start anew"
    own = {name: max(steps, default=0) for name, steps in found.items()}
    shown = ", ".join(f"{name} at step {step}" for name, step in own.items())
    return own, f"the members have no checkpoint of the same step and go on alone: {shown}"


def _common(found: Mapping[str, Sequence[int]]) -> int | None:
    shared = set.intersection(*(set(steps) for steps in found.values())) if found else set()
    return max(shared, default=None)


def _steps(folder: RunFolder, member: str, cohort: Cohort) -> list[int]:
    last = cohort.training_for(member).steps
    return [step for step in Checkpoints(folder.member(member) / "checkpoints").steps() if step < last]
