"""From cohort.yaml and the command line to the settings of one member's trainer, and to TRL's GRPOConfig.

Fields that follow from the cohort, or on which the step identity and the exact resume rest, are not free: setting one
is refused with the name of what to set instead. All others of GRPOConfig are passed through.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corl.cohort import Cohort, RewardSource, TrainingSettings
from corl.wire import NAME
from corl_trainer.stops import SettingsError
from corl_trainer.trl_fields import check_values, grpo_fields

if TYPE_CHECKING:
    from corl_trainer.trl_import import GRPOConfig

__all__ = ["TrainerSettings", "grpo_arguments", "grpo_config"]

ELSEWHERE = {
    "bf16": "training.dtype: bfloat16",
    "eval_steps": "training.eval_every",
    "generation_batch_size": "rollouts.problems_per_step and rollouts.n",
    "log_completions": "training.sample_completions_every",
    "max_completion_length": "rollouts.max_tokens",
    "max_steps": "training.steps",
    "num_generations": "rollouts.n",
    "num_generations_eval": "training.eval_samples",
    "num_train_epochs": "training.steps",
    "output_dir": "--run-dir",
    "resume_from_checkpoint": "--resume-step",
    "save_steps": "training.save_every",
    "save_total_limit": "training.keep_checkpoints",
    "steps_per_generation": "rollouts.problems_per_step and rollouts.n",
    "temperature": "rollouts.temperature",
    "use_cpu": "training.device: cpu",
}
"""GRPOConfig fields that the cohort file has under another name."""

FIXED: dict[str, tuple[Any, str]] = {
    "auto_find_batch_size": (False, "a step's batch is the same for every member"),
    "eval_on_start": (False, "held-out problems are evaluated through the judge: see training.eval_every"),
    "eval_strategy": ("no", "held-out problems are evaluated through the judge: see training.eval_every"),
    "ignore_data_skip": (False, "a resumed run would start again at the first problem"),
    "load_best_model_at_end": (False, "the best checkpoint is named in best.json"),
    "logging_steps": (1, "metrics are recorded every step"),
    "logging_strategy": ("steps", "metrics are recorded every step"),
    "min_p": (None, "truncated sampling biases the importance ratio"),
    "num_iterations": (1, "a step is one update on fresh rollouts; more of them cannot be resumed exactly"),
    "remove_unused_columns": (False, "the problem id travels in a column"),
    "repetition_penalty": (1.0, "it would bias the importance ratio"),
    "save_only_model": (False, "a checkpoint without the optimizer cannot be resumed"),
    "save_strategy": ("steps", "checkpoints are taken every training.save_every steps"),
    "shuffle_dataset": (False, "the order of problems follows from training.data_seed alone"),
    "top_k": (0, "truncated sampling biases the importance ratio"),
    "top_p": (1.0, "truncated sampling biases the importance ratio"),
    "use_vllm": (False, "rollouts come from the judge"),
}

NO_EFFECT_PREFIXES = ("vllm_", "use_transformers_")
TAKES_EFFECT = ("vllm_importance_sampling_",)


@dataclass(frozen=True)
class TrainerSettings:
    """Everything one member's trainer is started with."""

    cohort: Cohort
    member: str
    run: str
    run_dir: Path
    judges: Mapping[str, str]
    training: TrainingSettings
    weights: Path
    api_key: str | None = None
    resume_step: int | None = None

    @classmethod
    def build(
        cls,
        cohort: Cohort,
        member: str,
        *,
        run: str,
        run_dir: Path,
        judges: Mapping[str, str] | None = None,
        weights: Path | None = None,
        api_key: str | None = None,
        resume_step: int | None = None,
    ) -> TrainerSettings:
        """Raises SettingsError naming the field, the value and the remedy."""
        if member not in cohort.members:
            raise SettingsError(
                f"--member {member!r} is not in the cohort: its members are {', '.join(cohort.members)}"
            )
        if cohort.members[member].frozen:
            raise SettingsError(f"member {member!r} is frozen: it has no trainer; remove `frozen` to train it")
        addresses = {name: m.url for name, m in cohort.members.items() if m.url} | dict(judges or {})
        unknown = sorted(set(addresses) - set(cohort.members))
        if unknown:
            raise SettingsError(f"--judge names {unknown[0]!r}, which is not a member: {', '.join(cohort.members)}")
        for needed in [member, *cohort.teachers(member)]:
            if needed not in addresses:
                raise SettingsError(
                    f"the address of judge {needed!r} is not known: "
                    f"set members.{needed}.url or pass --judge {needed}=URL"
                )
        if not re.fullmatch(NAME, run):
            raise SettingsError(f"--run {run!r}: take letters, digits, dots, dashes and underscores, such as run-1")
        training = cohort.training_for(member)
        if cohort.vote.wait_s >= training.service_deadline_s:
            raise SettingsError(
                f"vote.wait_s is {cohort.vote.wait_s:g} s and training.service_deadline_s "
                f"{training.service_deadline_s:g} s: "
                "a score request would give up before the judge does; raise the deadline or lower wait_s"
            )
        if weights is None:
            weights = cohort.resolve(cohort.weights) if cohort.weights else run_dir / "weights"
        return cls(
            cohort=cohort,
            member=member,
            run=run,
            run_dir=run_dir.resolve(),
            judges=addresses,
            training=training,
            weights=weights.resolve(),
            api_key=api_key,
            resume_step=resume_step,
        )

    @property
    def reward(self) -> RewardSource:
        return self.cohort.reward

    @property
    def teachers(self) -> list[str]:
        return self.cohort.teachers(self.member)

    @property
    def member_dir(self) -> Path:
        return self.run_dir / self.member

    @property
    def checkpoints(self) -> Path:
        return self.member_dir / "checkpoints"

    @property
    def completions_per_step(self) -> int:
        return self.cohort.rollouts.problems_per_step * self.cohort.rollouts.n

    def resume_command(self) -> str:
        """The command that goes on from the last checkpoint."""
        words = ["corl", "train", "--member", self.member, str(self.cohort.path or "cohort.yaml"), "--run", self.run]
        words += ["--run-dir", str(self.run_dir), "--weights", str(self.weights)]
        for name, url in self.judges.items():
            if "@" not in url and url != self.cohort.members[name].url:  # no key on the screen
                words += ["--judge", f"{name}={url}"]
        return shlex.join(words)


def grpo_arguments(settings: TrainerSettings, *, world_size: int, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments for GRPOConfig. Raises SettingsError; ModuleNotFoundError without TRL."""
    training, rollouts = settings.training, settings.cohort.rollouts
    given = training.grpo_fields()
    _check_fields(given, set(grpo_fields()))
    check_values(given)
    if rollouts.n < 2:
        raise SettingsError(f"rollouts.n is {rollouts.n}: GRPO compares completions of one problem; set 2 or more")
    micro, accumulation = _split(settings.completions_per_step, world_size, on_cpu, given)
    arguments: dict[str, Any] = {
        "ddp_find_unused_parameters": False,
        "disable_tqdm": True,
        "gradient_checkpointing": not on_cpu,
        "dataloader_pin_memory": not on_cpu,
        "report_to": "none",
        "run_name": f"{settings.run}-{settings.member}",
        "vllm_importance_sampling_mode": "token_truncate",
        **given,
        **{name: value for name, (value, _) in FIXED.items()},
        "bf16": training.dtype == "bfloat16",
        "data_seed": training.data_seed,
        "gradient_accumulation_steps": accumulation,
        "max_completion_length": rollouts.max_tokens,
        "max_steps": training.steps,
        "num_generations": rollouts.n,
        "output_dir": str(settings.checkpoints),
        "per_device_train_batch_size": micro,
        "save_steps": training.save_every,
        "seed": training.seed + list(settings.cohort.members).index(settings.member),
        "steps_per_generation": accumulation,
        "temperature": rollouts.temperature,
        "use_cpu": on_cpu,
    }
    # The other ranks wait in a collective while the main one talks to a service.
    patience = int(training.service_deadline_s) + 600
    if int(arguments.setdefault("ddp_timeout", patience)) < patience:
        raise SettingsError(
            f"training.ddp_timeout is {arguments['ddp_timeout']}: the other ranks would give up while the "
            f"main one still waits for a service; set it to {patience} or more, or lower training.service_deadline_s"
        )
    if rollouts.ahead and not arguments.get("vllm_importance_sampling_correction", True):
        raise SettingsError(
            "rollouts.ahead is 1 with training.vllm_importance_sampling_correction off: rollouts of the step before "
            "would be trained on as if they were fresh; leave the correction on, or set rollouts.ahead to 0"
        )
    return arguments


def grpo_config(settings: TrainerSettings) -> GRPOConfig:
    """Raises SettingsError for fields that are unknown, fixed, or refused by TRL."""
    from corl_trainer.trl_import import GRPOConfig

    world_size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun and accelerate launch both set it
    arguments = grpo_arguments(settings, world_size=world_size, on_cpu=_on_cpu(settings.training.device))
    try:
        return GRPOConfig(**arguments)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"training: {error}") from error


def _check_fields(given: Mapping[str, Any], fields: set[str]) -> None:
    own = set(TrainingSettings.model_fields)
    for name, value in given.items():
        if name in ELSEWHERE:
            raise SettingsError(f"training.{name} is {value!r}: set {ELSEWHERE[name]} instead")
        if name in FIXED:
            wanted, why = FIXED[name]
            if value != wanted:
                raise SettingsError(f"training.{name} is {value!r} but must be {wanted!r}: {why}; leave it out")
        elif name not in fields:
            close = difflib.get_close_matches(name, sorted(own | fields), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see docs/training.md for the names"
            raise SettingsError(f"training.{name} is neither a field of ours nor of TRL's GRPOConfig: {hint}")
        elif name.startswith(NO_EFFECT_PREFIXES) and not name.startswith(TAKES_EFFECT):
            raise SettingsError(f"training.{name} has no effect: rollouts come from the judge; leave it out")


def _split(total: int, world_size: int, on_cpu: bool, given: Mapping[str, Any]) -> tuple[int, int]:
    """(per-device micro-batch, accumulation steps) whose product over all ranks is a step's completions."""
    what = f"a step has {total} completions (rollouts.problems_per_step x rollouts.n)"
    if total % world_size:
        raise SettingsError(f"{what}, which {world_size} processes cannot share equally: change one of them")
    share = total // world_size
    micro, accumulation = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    if micro is None and accumulation is None:
        # All at once is fastest where memory is no concern; on a device, eight completions at most.
        micro = share if on_cpu else max(d for d in range(1, min(8, share) + 1) if share % d == 0)
    if micro is None:
        micro = share // accumulation if accumulation and share % accumulation == 0 else 0
    if accumulation is None:
        accumulation = share // micro if micro and share % micro == 0 else 0
    if micro * accumulation != share:
        raise SettingsError(
            f"{what}, {share} on each of {world_size} processes, but per_device_train_batch_size is "
            f"{given.get('per_device_train_batch_size')} and gradient_accumulation_steps "
            f"{given.get('gradient_accumulation_steps')}: their product must be {share}; leave one of them out"
        )
    return int(micro), int(accumulation)


def _on_cpu(device: str) -> bool:
    import torch

    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return not (present["cuda"] or present["mps"])
    if not present[device]:
        raise SettingsError(f"training.device is {device!r} but torch sees no such device here: set it to auto or cpu")
    return device == "cpu"
