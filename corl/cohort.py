"""What a cohort is: cohort.yaml read and checked.

Paths in the file are relative to the file. See `docs/cohort.md` for every field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from corl.prompts import PromptFormat
from corl.wire import Name, Options, Task

RewardSource = Literal["peer", "self", "truth", "collective", "entropy", "certainty"]
EngineName = Literal["vllm", "transformers", "openai"]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Devices(Settings):
    """Accelerators by index, as CUDA_VISIBLE_DEVICES takes them; None leaves the choice to the host."""

    judge: str | None = None
    trainer: str | None = None


class Member(Settings):
    """One model of the cohort: own weights, own optimizer, own judge, own trainer (none if frozen)."""

    model: str = Field(description="folder, relative to the cohort file, or hub id")
    revision: str | None = None
    url: str | None = Field(None, description="address of its judge; chosen by the launcher if absent")
    frozen: bool = False
    engine: EngineName = "vllm"
    engine_options: dict[str, Any] = Field({}, description="passed to the engine, e.g. gpu_memory_utilization")
    devices: Devices = Devices()
    view: str = "original"
    replicas: int = Field(1, ge=1, description="judge processes that the launcher starts")
    training: dict[str, Any] = Field({}, description="overrides of `training` for this member")


class Columns(Settings):
    problem_id: str | None = Field("problem_id", description="None numbers the rows")
    problem: str = "problem"
    answer: str | None = "answer"


class ProblemSource(Settings):
    """JSON Lines (`path`) or a Hugging Face dataset (`dataset`), with the names of its columns."""

    path: Path | None = None
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: Columns = Columns()
    limit: int | None = Field(None, ge=1)


class Problems(Settings):
    """`views` maps a view's name to a source with the same problem ids and other texts."""

    train: ProblemSource
    heldout: ProblemSource | None = None
    views: dict[str, ProblemSource] = {}
    task: Task = "math"
    options: Options | None = None


class VotePolicy(Settings):
    """How a teacher's answers become a label (paper section on pseudo-labels; the preset keeps ties first)."""

    threshold: float = Field(0.0, ge=0.0, le=1.0)
    ties: Literal["abstain", "first"] = "abstain"
    min_parsed: int = Field(2, ge=1)
    wait_s: float = Field(600.0, ge=0.0)
    max_lag: int | None = Field(None, ge=0)
    start_wait_s: float = Field(600.0, ge=0.0, description="longest wait for a trainer that was never seen")


class RolloutSettings(Settings):
    """`n` samples for each of `problems_per_step` problems; `ahead: 1` samples the next step during the update."""

    n: int = Field(8, ge=1)
    problems_per_step: int = Field(16, ge=1)
    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(1.0, gt=0.0)
    ahead: Literal[0, 1] = 0


class LoraSettings(Settings):
    """PEFT's LoraConfig by its own names; merged weights are pushed."""

    r: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    lora_dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"


class TrainingSettings(BaseModel):
    """Our own fields, and beside them any field of TRL's GRPOConfig (checked by the trainer, which knows them)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    steps: int = Field(50, ge=1)
    data_seed: int = 42
    seed: int = 42
    save_every: int = Field(10, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(3, ge=3)
    eval_every: int | None = Field(None, ge=1, description="steps between evaluations; None evaluates first and last")
    eval_samples: int = Field(1, ge=1, description="completions per held-out problem")
    eval_limit: int | None = Field(None, ge=1)
    sample_completions_every: int | None = Field(None, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    lora: LoraSettings | None = None
    service_deadline_s: float = Field(1800.0, gt=0, description="longest that calls to a service are retried")

    def grpo_fields(self) -> dict[str, Any]:
        """The extra fields, for GRPOConfig."""
        return dict(self.model_extra or {})


class JudgeSettings(Settings):
    max_items: int = Field(4096, ge=1)
    max_completions: int = Field(65_536, ge=1)
    max_samples: int = Field(256, ge=1)
    max_body_bytes: int = Field(256 << 20, ge=1024)
    max_problems_in_flight: int = Field(64, ge=1, description="problems that one replica generates for at a time")
    reload_deadline_s: float = Field(900.0, gt=0)
    item_deadline_s: float = Field(1800.0, gt=0, description="longest that one problem may take to be sampled")


class Cohort(Settings):
    """The whole file."""

    name: Name = "cohort"
    seed: int = 42
    members: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")], Member] = Field(min_length=1)
    problems: Problems
    prompt: PromptFormat = PromptFormat()
    topology: Literal["ring", "all"] | dict[str, list[str]] = "ring"
    reward: RewardSource = "peer"
    preset: Literal["paper"] | None = None
    vote: VotePolicy = VotePolicy()
    rollouts: RolloutSettings = RolloutSettings()
    training: TrainingSettings = TrainingSettings()
    judge: JudgeSettings = JudgeSettings()
    redis: str | None = Field(None, description="URL; a local server is started when none is given")
    weights: Path | None = Field(None, description="folder shared by trainers and judges; <run>/weights by default")
