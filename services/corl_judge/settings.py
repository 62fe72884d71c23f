"""Everything that can be set of a judge, in one place.

Precedence: command-line flag, `CORL_*` environment variable, cohort.yaml, default (`resolve`).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from corl.wire import NAME
from corl_judge.compat.rendered import compiled

__all__ = ["Settings", "is_loopback", "resolve"]


class Settings(BaseSettings):
    """A judge's settings. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="CORL_", frozen=True, extra="forbid", env_ignore_empty=True)

    # Who
    member: str = Field(
        "model",
        min_length=1,
        max_length=64,
        pattern=NAME,
        description="the cohort member that this judge serves",
    )
    model: str = Field("", description="folder or hub id of the member's model")
    revision: str | None = Field(None, description="of a model on the hub")
    frozen: bool = Field(False, description="no trainer: its weights never change and nobody waits for its votes")
    engine: str = Field("vllm", description="vllm, transformers, or openai for another server's endpoint")
    engine_options: dict[str, Any] = Field({}, description="JSON object, passed to the engine")
    run: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=NAME,
        description="take the cohort file's problems for this run only; None is any run",
    )
    cohort_file: Path | None = Field(None, description="cohort.yaml: problems, views and the prompt format")
    seed: int = Field(42, description="of the cohort; every sampling seed derives from it")

    # Where
    host: str = Field("127.0.0.1", description="address to listen on; others than loopback need CORL_API_KEY")
    port: int = Field(8000, ge=0, le=65535, description="0 takes a free one")
    api_key: SecretStr | None = Field(None, description="needed for any address but loopback")
    redis: SecretStr | None = Field(None, description="redis://, rediss:// or unix:// URL; None starts a local server")
    weights: Path | None = Field(None, description="the only folder that published weights are read from")
    log_format: Literal["json", "console"] = Field("console", description="of the log on stderr")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least that is logged")

    # Limits of one request, and of what waits
    max_body_bytes: int = Field(256 << 20, ge=1024, description="of one request; more is a 413")
    max_items: int = Field(4096, ge=1, description="problems or score items of one request; more is a 422")
    max_completions: int = Field(65_536, ge=1, description="completions of one score request")
    max_samples: int = Field(256, ge=1, description="samples of one problem")
    max_problems_in_flight: int = Field(64, ge=1, description="problems that this replica generates for at a time")
    max_queued_rollouts: int = Field(16_384, ge=1, description="problems waiting in the queue; more are a 429")
    max_queued_votes: int = Field(16_384, ge=1, description="the same for fresh votes")
    max_open_requests: int = Field(4096, ge=1, description="requests of each kind that one replica holds open")

    # Times
    deadline_s: float = Field(3600.0, gt=0, description="longest that any request is held")
    item_deadline_s: float = Field(1800.0, gt=0, description="longest that one problem may take to be sampled")
    reload_deadline_s: float = Field(900.0, gt=0, description="a load that takes longer is neither ready nor alive")
    drain_s: float = Field(30.0, ge=0, description="on SIGTERM: running work has this long to finish")
    probe_every_s: float = Field(30.0, gt=0, description="a generation is tried when none completed for this long")
    start_wait_s: float = Field(600.0, ge=0, description="longest wait for a trainer that was never seen")
    heartbeat_s: float = Field(5.0, gt=0, description="how often a replica says that it is there")
    replica_ttl_s: float = Field(15.0, gt=0, description="a replica that is silent for this long is gone")
    lease_s: float = Field(30.0, gt=0, description="a work item whose worker is silent for this long is redelivered")
    poll_s: float = Field(0.2, gt=0, description="how often the wanted weights are looked up")
    result_ttl_s: float = Field(7200.0, gt=0, description="how long results of work are kept")
    vote_ttl_s: float = Field(7 * 86_400.0, gt=0, description="how long filed votes are kept at most")
    keep_steps: int = Field(200, ge=2, description="votes older than this many steps are dropped")

    # Fresh votes
    vote_max_tokens: int = Field(1024, ge=1, description="of a fresh vote; less where the model is shorter")
    vote_temperature: float = Field(1.0, gt=0.0, le=10.0, description="of a fresh vote")

    # Grading
    grader_processes: int = Field(1, ge=1, le=64, description="processes that judge large batches")
    grader_deadline_s: float = Field(60.0, gt=0, description="longest for one chunk of completions")

    # Trainers of other projects
    compat: Literal["nemo-gym"] | None = Field(None, description="serve this project's routes at the root")
    compat_samples: int = Field(8, ge=1, description="completions of a vote for /compat, where the URL does not say")
    compat_on_unlabeled: Literal["zero", "error"] = Field("zero", description="for samples without a label, likewise")
    compat_label: Literal["ignored", "problem_id"] = Field("ignored", description="what labels are, likewise")
    compat_template: str | None = Field(
        None, description="chat template of prompts that come rendered: a name such as chatml, or a regular expression"
    )
    compat_deadline_s: float = Field(100.0, gt=0, description="longest that /compat holds a request")

    @field_validator("compat_template")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        if template is not None:
            compiled(template)
        return template

    @field_validator("replica_ttl_s")
    @classmethod
    def _outlives_heartbeat(cls, ttl: float, info: ValidationInfo) -> float:
        heartbeat = info.data.get("heartbeat_s", 5.0)
        if ttl < 2 * heartbeat:
            raise ValueError(f"is {ttl} s with a heartbeat every {heartbeat} s: make it at least twice that")
        return ttl

    @model_validator(mode="before")
    @classmethod
    def _remote_is_frozen(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("engine") == "openai":
            if given.get("frozen", True) is not True:
                raise ValueError("frozen is false, but another server's endpoint takes no weights: leave it out")
            return {**given, "frozen": True}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_loopback(self.host) and self.api_key is None:
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: set CORL_API_KEY, or stay on 127.0.0.1"
            )
        if self.item_deadline_s > self.deadline_s:
            raise ValueError(
                f"item_deadline_s is {self.item_deadline_s} but no request is held for more than {self.deadline_s} s "
                "(deadline_s): an item that takes longer could never be answered"
            )
        if self.result_ttl_s <= self.deadline_s:
            raise ValueError(
                f"result_ttl_s is {self.result_ttl_s} but requests are held for up to {self.deadline_s} s: "
                "results must outlive any request that waits for them"
            )
        return self

    @property
    def namespace(self) -> str:
        """Prefix of every Redis key of this member's judge; all replicas and all runs share it."""
        return f"corl:{self.member}"


def resolve(cohort: dict[str, Any], flags: dict[str, Any]) -> Settings:
    """Settings by precedence. `flags` with value None were not given. Raises pydantic.ValidationError."""
    given = {name: value for name, value in flags.items() if value is not None}
    return Settings(**{**cohort, **EnvSettingsSource(Settings)(), **given})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
