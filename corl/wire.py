"""Requests and responses of the judge's REST API, version 1.

Requests forbid unknown fields, so that a mistyped field is a 422 that names it and not a silent default; responses
ignore them, so that an older client can read a newer server.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "AnswerCount",
    "Completion",
    "ErrorBody",
    "Failure",
    "FieldError",
    "ImagePart",
    "ImageURL",
    "JobRequest",
    "JobStatus",
    "Limits",
    "Message",
    "ModelInfo",
    "Options",
    "Policy",
    "Problem",
    "ProblemRollouts",
    "Prompt",
    "Replica",
    "RolloutsRequest",
    "RolloutsResponse",
    "RunnerUp",
    "Sampling",
    "ScoreItem",
    "ScoredItem",
    "ScoresRequest",
    "ScoresResponse",
    "Task",
    "TextPart",
    "TokenizerInfo",
    "TrainerLease",
    "TrainerUpdate",
    "Vote",
    "VotesDropped",
    "WeightsStatus",
    "WeightsTag",
    "WeightsUpdate",
]

Task = Literal["math", "choice", "text"]
Options = list[str] | dict[str, str]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What names of runs and members are made of."""
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME)]
Identifier = Annotated[str, Field(min_length=1, max_length=512)]
LARGEST = 2**53
"""Whole numbers up to here are exact in every JSON reader and in Redis scripts."""
Step = Annotated[int, Field(ge=0, le=LARGEST)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Response(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


# Prompts -------------------------------------------------------------------------------------------------------------


class TextPart(Request):
    type: Literal["text"]
    text: str


class ImageURL(Request):
    url: str = Field(description="`sha256:HEX` or a data URL")


class ImagePart(Request):
    """An image by content address or data URL; a server never fetches a URL."""

    type: Literal["image_url"]
    image_url: ImageURL


class Message(Request):
    """A chat message in OpenAI's format."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]] = Field(
        description="text, or parts in order; no engine takes images yet"
    )


Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    | Annotated[list[Message], Field(min_length=1)]
)
"""Text (one user message where the tokenizer has a chat template), token ids (rollouts only), or chat messages."""


class Problem(Request):
    """A training prompt in one member's view; its id is the same for every member."""

    problem_id: Identifier = Field(description="the same for every member; once in a request")
    prompt: Prompt = Field(
        description="text (one user message where there is a chat template), chat messages, or token ids"
    )
    task: Task = Field("math", description="how answers are found and compared")
    options: Options | None = Field(None, description="of task choice: letters, or letters with their texts")


class Sampling(Request):
    """How completions are sampled. Full support (top_p 1, top_k 0) keeps the importance ratio unbiased."""

    max_tokens: int = Field(1024, ge=1, le=2**31 - 1, description="longest completion")
    temperature: float = Field(1.0, ge=0.0, le=2.0, description="0 is greedy and needs n = 1")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="1 is off")
    top_k: int = Field(0, ge=0, le=2**31 - 1, description="0 is off")


# Weights -------------------------------------------------------------------------------------------------------------


class WeightsTag(Response):
    """Which weights answered: the trainer's incarnation, the version (updates done), the digest of the tensors."""

    incarnation: int = Field(ge=0, description="start of the trainer that published them; 0 as loaded at start")
    version: int = Field(ge=0, description="updates done")
    digest: str = Field(description="of all tensors")

    def label(self) -> str:
        return f"{self.incarnation}:{self.version}:{self.digest}"


class WeightsUpdate(Request):
    """`PUT /v1/weights`. `uri` is the folder of a published snapshot, inside the judge's weights folder."""

    run: Name = Field(description="as in the manifest")
    incarnation: int = Field(ge=1, le=LARGEST, description="as `PUT /v1/trainer` gave it")
    version: int = Field(ge=0, le=LARGEST, description="updates done")
    digest: str = Field(min_length=1, description="`state_digest` of the manifest")
    uri: str = Field(min_length=1, description="folder of the snapshot, inside the weights folder")


ReplicaState = Literal["starting", "ready", "draining_for_reload", "loading", "failed", "draining"]


class Replica(Response):
    """One process behind a judge. `reload_error` says why the last asked-for version could not be loaded."""

    id: str = Field(description="host, process id and a random part")
    member: str
    state: ReplicaState
    loaded: WeightsTag | None = Field(description="null before the first load")
    in_flight: int = Field(0, description="work items that it runs now")
    started_at: float = Field(description="seconds since the epoch")
    reload_error: str | None = Field(None, description="why the last version asked for could not be loaded")


class WeightsStatus(Response):
    """`desired` is None until a trainer published; then replicas serve the weights they were started with."""

    desired: WeightsTag | None = Field(description="null until a trainer published")
    uri: str | None = Field(None, description="folder of the desired weights")
    replicas: list[Replica] = Field(description="the one that answers first, then the others that live")


# Votes ---------------------------------------------------------------------------------------------------------------


class AnswerCount(Response):
    """One spelling in a histogram: the answer as written, its key with the marks of that spelling, how often given."""

    answer: str = Field(description="as written first")
    key: str = Field(description="canonical form with its marks")
    count: int = Field(ge=1, description="how often it was given")


class RunnerUp(Response):
    answer: str
    key: str
    count: int = Field(ge=1)


VoteStatus = Literal["ok", "tie", "weak", "none"]
VoteSource = Literal["rollout", "fresh"]


class Vote(Response):
    """A member's vote on a problem. `keys` are all keys attached to the winner; rewards are membership in it."""

    status: VoteStatus
    answer: str | None = Field(None, description="of the winner, as written first; null under `none`")
    key: str | None = Field(None, description="its canonical form")
    keys: list[str] = Field([], description="all keys that count as the winner; the reward is membership")
    count: int = Field(0, ge=0, description="answers of the winner")
    parsed: int = Field(0, ge=0, description="completions with an answer")
    total: int = Field(0, ge=0, description="completions")
    share: float = Field(0.0, ge=0.0, le=1.0, description="count / parsed")
    runner_up: RunnerUp | None = None
    source: VoteSource | None = Field(None, description="a by-product of rollouts, or sampled for an asker")
    weights: WeightsTag | None = Field(None, description="that gave the answers")
    histogram: list[AnswerCount] | None = Field(
        None, description="all spellings by first position, when the request asked for them"
    )


# Rollouts ------------------------------------------------------------------------------------------------------------


class RolloutsRequest(Request):
    """`POST /v1/rollouts`. `purpose: eval` is never filed as a vote."""

    problems: list[Problem] = Field(min_length=1)
    n: int = Field(ge=1, description="completions per problem")
    sampling: Sampling = Sampling()
    run: Name | None = Field(None, description="files the votes under this run")
    step: Step | None = Field(None, description="needs `run`")
    incarnation: int | None = Field(
        None, ge=1, le=LARGEST, description="the trainer's; a lower one than the current is a 409"
    )
    purpose: Literal["train", "eval"] = Field("train", description="eval is never filed as a vote")
    min_version: int | None = Field(
        None, ge=0, le=LARGEST, description="hold the request until these weights are loaded"
    )
    deadline_s: float = Field(600.0, gt=0, le=86_400, description="then 503 with Retry-After")

    @model_validator(mode="after")
    def _consistent(self) -> RolloutsRequest:
        if self.sampling.temperature == 0.0 and self.n != 1:
            raise ValueError(f"n is {self.n} but temperature 0 is greedy: set n to 1 or raise the temperature")
        if self.step is not None and self.run is None:
            raise ValueError("step is given without run: name the run, or leave the step out")
        seen: set[str] = set()
        for problem in self.problems:
            if problem.problem_id in seen:
                raise ValueError(f"problem_id {problem.problem_id!r} appears twice: send each problem once")
            seen.add(problem.problem_id)
        return self


class Completion(Response):
    """One rollout: token ids, the log-probability of each as sampled, and the answer found in the text."""

    token_ids: list[int]
    logprobs: list[float] = Field(description="of each token, as sampled")
    text: str
    finish_reason: Literal["stop", "length"] = Field(description="length: cut at max_tokens")
    answer: str | None = Field(description="as found in the text; null if there is none")


class ProblemRollouts(Response):
    problem_id: str
    prompt_token_ids: list[int] = Field(description="what the engine was given")
    completions: list[Completion]
    vote: Vote = Field(description="of these completions")
    weights: WeightsTag = Field(description="one version for all completions of a problem")


class RolloutsResponse(Response):
    """In the order of the request. `weights` is the oldest among the problems'."""

    member: str
    run: str | None
    step: int | None
    problems: list[ProblemRollouts]
    weights: WeightsTag = Field(description="the oldest among the problems")


# Scores --------------------------------------------------------------------------------------------------------------


class Policy(Request):
    """The asker's rule for turning a histogram of answers into a label; applied at read, binding nobody else."""

    samples: int = Field(8, ge=1, description="completions of a fresh vote")
    threshold: float = Field(0.0, ge=0.0, le=1.0, description="least share of the winner")
    ties: Literal["abstain", "first"] = Field("abstain", description="no label, or the answer seen first")
    min_parsed: int = Field(2, ge=1, le=LARGEST, description="fewest answers that make a vote")
    wait_s: float = Field(0.0, ge=0.0, le=86_400, description="longest wait for a vote that is about to be filed")
    max_lag: int | None = Field(None, ge=0, description="steps the weights of the vote may be older; null is any")


class ScoreItem(Request):
    id: Identifier = Field(description="of the item, once in a request")
    problem_id: Identifier = Field(description="identity in a run; else only echoed")
    prompt: Prompt = Field(description="text or chat messages; token ids are refused")
    completions: list[str] = Field(description="texts to reward")
    task: Task = Field("math", description="how answers are found and compared")
    options: Options | None = Field(None, description="of task choice")

    @field_validator("prompt")
    @classmethod
    def _no_token_ids(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            raise ValueError("token ids belong to another member's tokenizer: send the text or the chat messages")
        return prompt


class ScoresRequest(Request):
    """`POST /v1/scores`. Fresh votes are sampled with the judge's own settings unless `sampling` is given."""

    items: list[ScoreItem] = Field(min_length=1)
    policy: Policy = Policy()
    run: Name | None = Field(None, description="takes the votes of this run")
    step: Step | None = Field(None, description="needs `run`; without it the present weights stand for the step")
    sampling: Sampling | None = Field(None, description="of a fresh vote; else as the judge is set")
    histogram: bool = Field(False, description="return the whole histogram with each vote")

    @model_validator(mode="after")
    def _consistent(self) -> ScoresRequest:
        if self.step is not None and self.run is None:
            raise ValueError("step is given without run: name the run, or leave the step out")
        seen: set[str] = set()
        for item in self.items:
            if item.id in seen:
                raise ValueError(f"item id {item.id!r} appears twice: ids must be unique within a request")
            seen.add(item.id)
        return self


class Failure(Response):
    """Why an item has no verdict; never a reward."""

    kind: Literal["timeout", "invalid", "engine", "internal"]
    message: str


class ScoredItem(Response):
    """`rewards` is null unless `status` is `scored`; `answers` has one entry a completion."""

    id: str
    problem_id: str
    status: Literal["scored", "unlabeled", "failed"]
    rewards: list[float] | None = Field(None, description="one a completion; null unless `scored`")
    answers: list[str | None] = Field([], description="what was found in each completion")
    vote: Vote | None = None
    failure: Failure | None = None

    @field_validator("rewards")
    @classmethod
    def _finite(cls, rewards: list[float] | None) -> list[float] | None:
        if rewards is not None and not all(math.isfinite(r) for r in rewards):
            raise ValueError("a reward is not a finite number")
        return rewards


class ScoresResponse(Response):
    """`waited_s`: the longest that an item waited for a vote that was about to be filed."""

    member: str
    run: str | None = Field(description="as asked")
    step: int | None = Field(description="as asked")
    items: list[ScoredItem]
    weights: WeightsTag = Field(description="newest that this judge served; each vote has its own")
    waited_s: float = Field(0.0, ge=0.0, allow_inf_nan=False, description="for votes that were about to be filed")


# Jobs ----------------------------------------------------------------------------------------------------------------


class JobRequest(Request):
    """`POST /v1/jobs`: the body of a route, done in the background."""

    kind: Literal["rollouts", "scores"]
    request: RolloutsRequest | ScoresRequest = Field(description="the body of that route")

    @model_validator(mode="after")
    def _kinds_agree(self) -> JobRequest:
        wanted = RolloutsRequest if self.kind == "rollouts" else ScoresRequest
        if not isinstance(self.request, wanted):
            raise ValueError(f"kind is {self.kind!r} but the request is not the body of that route")
        return self


class JobStatus(Response):
    """`done` of `total` items are finished. `result` is there when `status` is `done`, `error` when it is `failed`."""

    id: str
    kind: Literal["rollouts", "scores"]
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    done: int = Field(ge=0, description="items that have ended")
    total: int = Field(ge=0, description="problems or items")
    created_at: float = Field(description="seconds since the epoch")
    result: RolloutsResponse | ScoresResponse | None = Field(None, description="when `done`")
    error: ErrorBody | None = Field(None, description="when `failed`")


# Trainer lease, model, errors ----------------------------------------------------------------------------------------


class TrainerUpdate(Request):
    """`PUT /v1/trainer`, every ttl/3. Without an incarnation: a trainer's first call, which is given the next one."""

    run: Name
    step: Step = Field(description="updates done")
    ttl_s: float = Field(gt=0, le=3600, description="the lease lapses this long after the last renewal")
    incarnation: int | None = Field(None, ge=1, le=LARGEST, description="none on the first call, which gives one")


class TrainerLease(Response):
    run: str
    incarnation: int
    step: int
    ttl_s: float


class VotesDropped(Response):
    """`DELETE /v1/votes?run=&after=`: how many votes of later steps there were."""

    run: str
    after: int
    dropped: int = Field(ge=0)


class TokenizerInfo(Response):
    vocab_size: int
    eos_token_ids: list[int]
    chat_template: bool = Field(description="whether text prompts are rendered as a user message")


class Limits(Response):
    max_model_len: int = Field(description="tokens of prompt and completion")
    max_items: int = Field(description="problems or score items in one request")
    max_completions: int = Field(description="completions in one score request")
    max_samples: int = Field(description="samples a problem")
    max_body_bytes: int = Field(description="of one request")


class ModelInfo(Response):
    """`GET /v1/model`."""

    member: str
    model: str
    revision: str | None
    frozen: bool
    tokenizer: TokenizerInfo
    weights: WeightsTag = Field(description="newest that this judge served")
    engine: str
    engine_version: str
    limits: Limits


class FieldError(Response):
    field: str
    message: str
    value: str | None = None


class ErrorBody(Response):
    """RFC 9457 problem+json. `type` is a stable URN by which clients tell errors apart."""

    type: str = Field("about:blank", description="`urn:corl:KIND`")
    title: str
    status: int
    detail: str | None = Field(None, description="what was wrong, and the remedy")
    instance: str | None = Field(None, description="path of the request")
    errors: list[FieldError] = Field([], description="the fields that were wrong")


JobStatus.model_rebuild()
