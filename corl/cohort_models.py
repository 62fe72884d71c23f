"""The fields of cohort.yaml as typed, frozen models, and what follows from them: who teaches whom, where a model lies.

Paths in the file are relative to the file. `docs/cohort.md` lists every field.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from corl.errors import CohortError
from corl.faults import nearest
from corl.prompts import PromptFormat
from corl.wire import Name, Options, Task

if TYPE_CHECKING:
    from corl.problems import ProblemSet

__all__ = [
    "ORIGINAL",
    "Cohort",
    "Columns",
    "Devices",
    "EngineName",
    "JudgeSettings",
    "LoraSettings",
    "Member",
    "ProblemSource",
    "Problems",
    "RewardSource",
    "RolloutSettings",
    "Settings",
    "TrainingSettings",
    "VotePolicy",
]

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
ORIGINAL = "original"
"""The view whose texts are those of `problems.train`."""

RewardSource = Literal["peer", "self", "truth", "collective", "entropy", "certainty"]
EngineName = Literal["vllm", "transformers", "openai"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Devices(Settings):
    """Accelerators by index, as CUDA_VISIBLE_DEVICES takes them; None leaves the choice to the host."""

    judge: str | None = Field(None, description="e.g. `0` or `0,1`")
    trainer: str | None = Field(None, description="e.g. `2`; several need `accelerate launch`")


class Member(Settings):
    """One model of the cohort: own weights, own optimizer, own judge, own trainer (none if frozen)."""

    model: str = Field(description="folder, relative to the cohort file, or hub id")
    revision: str | None = Field(None, description="branch, tag or commit of a hub model")
    url: str | None = Field(None, description="address of its judge; chosen by the launcher if absent")
    frozen: bool = Field(False, description="teaches and does not learn: it has no trainer")
    engine: EngineName = Field("vllm", description="`transformers` runs without vLLM; `openai` is another's endpoint")
    engine_options: dict[str, Any] = Field({}, description="passed to the engine, e.g. gpu_memory_utilization")
    devices: Devices = Devices()
    view: str = Field(ORIGINAL, description="which text of each problem it is asked: `original` or a key of `views`")
    replicas: int | None = Field(None, ge=1, description="judge processes that the launcher starts; `judge.replicas`")
    training: dict[str, Any] = Field({}, description="overrides of `training` for this member")

    @property
    def remote_url(self) -> str | None:
        """Address of a judge that runs on another host and is not ours to start; None for one on loopback."""
        return None if self.url is None or urlsplit(self.url).hostname in LOOPBACK else self.url


class Columns(Settings):
    """Which column holds what."""

    problem_id: str | None = Field("problem_id", description="null numbers the rows from 0")
    problem: str = Field("problem", description="the text")
    answer: str | None = Field(
        "answer", description="read for held-out problems, and for training ones by `truth` only"
    )
    options: str | None = Field(None, description="a choice problem's own options; `problems.options` holds for all")
    extract_answer: bool = Field(
        False, description="the answer column holds a worked solution: its answer is found as in a completion"
    )


class ProblemSource(Settings):
    """JSON Lines (`path`) or a Hugging Face dataset (`dataset`), with the names of its columns."""

    path: Path | None = Field(None, description="JSON Lines; .json, .csv and .parquet are read by `datasets`")
    dataset: str | None = Field(None, description="hub id, or a folder relative to the cohort file")
    config: str | None = Field(None, description="configuration of a dataset that has several")
    split: str = Field("train", description="split of a dataset")
    revision: str | None = Field(None, description="branch, tag or commit of a hub dataset")
    columns: Columns = Columns()
    where: dict[str, str | int | float | bool | list[str | int | float | bool]] = Field(
        {}, description="rows kept: the column equals the value, or one of them"
    )
    limit: int | None = Field(None, ge=1, description="problems taken from the start, after `where`")


class Problems(Settings):
    """`views` maps a view's name to a source with the same problem ids and other texts."""

    train: ProblemSource
    heldout: ProblemSource | None = Field(None, description="problems with answers, for evaluation alone")
    views: dict[str, ProblemSource] = Field({}, description="other texts of the same problems, by the view's name")
    task: Task = Field("math", description="how answers are found and compared")
    options: Options | None = Field(None, description="of task choice: letters, or letters with their texts")


class VotePolicy(Settings):
    """How a teacher's answers become a label (paper section on pseudo-labels; the preset keeps ties first)."""

    threshold: float = Field(0.0, ge=0.0, le=1.0, description="smallest share of the parsed answers that is a label")
    ties: Literal["abstain", "first"] = Field("abstain", description="no label, or the answer seen first")
    min_parsed: int = Field(2, ge=1, description="fewest completions with an answer that make a vote")
    wait_s: float = Field(600.0, ge=0.0, description="longest wait for a vote that is about to be filed")
    max_lag: int | None = Field(None, ge=0, description="steps that a vote's weights may be old; null is any")
    start_wait_s: float = Field(600.0, ge=0.0, description="longest wait for a trainer that was never seen")


class RolloutSettings(Settings):
    """`n` samples for each of `problems_per_step` problems; `ahead: 1` samples the next step during the update."""

    n: int = Field(8, ge=1, description="completions for each problem")
    problems_per_step: int = Field(16, ge=1)
    max_tokens: int = Field(1024, ge=1, description="longest completion")
    temperature: float = Field(1.0, gt=0.0, le=2.0)
    ahead: Literal[0, 1] = Field(0, description="1: the next step is sampled while this one updates")


class LoraSettings(Settings):
    """PEFT's LoraConfig by its own names; merged weights are pushed."""

    r: int = Field(16, ge=1, description="rank")
    lora_alpha: int = Field(32, ge=1, description="scale; the update is times lora_alpha / r")
    lora_dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"


class TrainingSettings(BaseModel):
    """Our own fields, and beside them any field of TRL's GRPOConfig (checked by the trainer, which knows them)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    steps: int = Field(50, ge=1, description="updates of each member")
    data_seed: int = Field(42, description="fixes which problems come at which step, for all members")
    seed: int = Field(42, description="of the trainer's own randomness")
    save_every: int = Field(10, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(3, ge=3, description="3 at least, so that members find a common step to resume at")
    eval_every: int | None = Field(None, ge=1, description="steps between evaluations; None evaluates first and last")
    eval_samples: int = Field(1, ge=1, description="completions per held-out problem")
    eval_limit: int | None = Field(None, ge=1, description="held-out problems evaluated, from the first")
    sample_completions_every: int | None = Field(None, ge=1, description="steps between written-out completions")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the passes; weights, gradients and Adam's states are float32"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    lora: LoraSettings | None = None
    service_deadline_s: float = Field(1800.0, gt=0, description="longest that calls to a service are retried")

    def grpo_fields(self) -> dict[str, Any]:
        """The extra fields, for GRPOConfig."""
        return dict(self.model_extra or {})


class JudgeSettings(Settings):
    """Limits of a judge, the same for every member."""

    replicas: int = Field(1, ge=1, description="judge processes a member; a member's own number goes first")
    max_items: int = Field(4096, ge=1, description="problems or score items in one request")
    max_completions: int = Field(65_536, ge=1, description="completions in one score request")
    max_samples: int = Field(256, ge=1, description="samples for one problem")
    max_body_bytes: int = Field(256 << 20, ge=1024, description="longest request body")
    max_problems_in_flight: int = Field(64, ge=1, description="problems that one replica generates for at a time")
    reload_deadline_s: float = Field(900.0, gt=0, description="longest that loading new weights may take")
    item_deadline_s: float = Field(1800.0, gt=0, description="longest that one problem may take to be sampled")


class Cohort(Settings):
    """The whole file."""

    name: Name = Field("cohort", description="begins the names of its runs")
    seed: int = Field(42, description="of sampling, together with member, step and problem")
    members: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")], Member] = Field(min_length=1)
    problems: Problems
    prompt: PromptFormat = PromptFormat()
    topology: Literal["ring", "all"] | dict[str, list[str]] = Field("ring", description="who judges whom")
    reward: RewardSource = Field("peer", description="what a completion is compared with")
    preset: Literal["paper"] | None = Field(None, description="values for the fields that this file does not give")
    vote: VotePolicy = VotePolicy()
    rollouts: RolloutSettings = RolloutSettings()
    training: TrainingSettings = TrainingSettings()
    judge: JudgeSettings = JudgeSettings()
    redis: str | None = Field(None, description="URL; a local server is started when none is given")
    weights: Path | None = Field(
        None, description="folder shared by trainers and judges; `weights` in the run's folder if none is given"
    )

    _path: Path | None = PrivateAttr(None)
    _problems: ProblemSet | None = PrivateAttr(None)

    @property
    def path(self) -> Path | None:
        """The file it was read from."""
        return self._path

    @property
    def base_dir(self) -> Path:
        """What the paths in the file are relative to: the file's folder, or the current one if built in code."""
        return self._path.parent if self._path is not None else Path.cwd()

    def trained(self) -> list[str]:
        """The members that have a trainer, in file order."""
        return [name for name, member in self.members.items() if not member.frozen]

    def teachers(self, member: str) -> list[str]:
        """Whose votes reward `member`, by the reward source and the topology; empty if it needs nobody else's.

        `ring`: a <- b <- c <- a in file order. `collective` takes all other members, whatever the topology (its own
        answers it has already). A frozen member is not rewarded. Raises CohortError for an unknown name.
        """
        self._known(member)
        names = list(self.members)
        if self.members[member].frozen or self.reward not in ("peer", "collective"):
            return []
        if self.reward == "collective" or self.topology == "all":
            return [name for name in names if name != member]
        if self.topology == "ring":
            return [names[(names.index(member) + 1) % len(names)]]
        return list(self.topology.get(member, []))

    def pupils(self, member: str) -> list[str]:
        """Whom `member`'s votes reward."""
        self._known(member)
        return [name for name in self.members if member in self.teachers(name)]

    def replicas(self, member: str) -> int:
        """Judge processes of a member."""
        own = self.members[member].replicas
        return self.judge.replicas if own is None else own

    def training_for(self, member: str) -> TrainingSettings:
        """`training` with the member's own overrides. Raises pydantic's ValidationError for a wrong type."""
        self._known(member)
        own = self.members[member].training
        return TrainingSettings.model_validate({**self.training.model_dump(), **own}) if own else self.training

    def model_path(self, member: str) -> str:
        """The absolute folder of a member's model if there is one, else its hub id.

        Raises CohortError if the name is meant as a folder that is missing or holds no config.json.
        """
        self._known(member)
        model = self.members[member].model
        folder = Path(os.path.normpath(self.base_dir / Path(model).expanduser()))
        where = f"members.{member}.model"
        if folder.is_dir():
            if self.members[member].engine != "openai" and not (folder / "config.json").is_file():
                raise CohortError(f"{self._shown()}: {where}: {str(folder)!r} holds no config.json: not a model folder")
            return str(folder)
        head = Path(model).parts[0] if model else ""
        if HUB_ID.fullmatch(model) and not (self.base_dir / head).is_dir():
            return model
        raise CohortError(
            f"{self._shown()}: {where}: no folder {str(folder)!r}; make it, or give a hub id such as 'org/name'"
        )

    def resolve(self, path: str | Path) -> Path:
        """An absolute path from one in the file."""
        return Path(os.path.normpath(self.base_dir / Path(path).expanduser()))

    def _known(self, member: str) -> None:
        if member not in self.members:
            raise CohortError(f"{self._shown()}: no member {member!r}; {nearest(member, self.members)}")

    def _shown(self) -> str:
        return str(self._path) if self._path is not None else "cohort"
