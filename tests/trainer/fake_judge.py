"""A judge for trainer tests: real HTTP, the wire's own models and corl's own votes; only the model is a script.

What it answers depends on (member, problem id, step, sample) alone, so two runs that ask the same get the same. Faults
are planned by route: `judge.faults["scores"] = [status(503), broken(...)]`, one taken a request, then it behaves again.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from transformers import AutoTokenizer

from corl import wire
from corl.histogram import Histogram
from corl.rewards import rewards
from corl.wire_votes import to_wire

__all__ = ["Answers", "FakeJudge", "Fault", "answers", "broken", "status"]

Answers = Callable[[str, int, int], str | None]
"""(problem id, step, sample) -> the answer to put into a box; None for a completion without one."""
Fault = Callable[[dict[str, Any]], Response | dict[str, Any]]
"""Gets the good answer; gives the one to send."""

START = wire.WeightsTag(incarnation=0, version=0, digest="start")


def answers(seed: str, kinds: int = 3) -> Answers:
    """One of `kinds` answers, by hash."""

    def answer(problem_id: str, step: int, sample: int) -> str:
        digest = hashlib.sha256(f"{seed} {problem_id} {step} {sample}".encode()).digest()
        return f"{digest[0] % kinds:03d}"

    return answer


def status(code: int, detail: str = "planned") -> Fault:
    return lambda _: JSONResponse({"title": "fault", "status": code, "detail": detail}, code)


def broken(change: Callable[[dict[str, Any]], None]) -> Fault:
    """The good answer with something changed in place."""

    def fault(body: dict[str, Any]) -> dict[str, Any]:
        change(body)
        return body

    return fault


@dataclass
class FakeJudge:
    """Use as a context manager. `asked` lists (route, body) of every request; `pushed` the updates accepted."""

    member: str
    model: str
    answers: Answers
    key: str | None = None
    load_fails: str | None = None
    delay_s: float = 0.0
    frozen: bool = False
    fresh: bool = False
    ready: bool = True
    incarnation: int = 0
    desired: wire.WeightsTag | None = None
    loaded: wire.WeightsTag = START
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pushed: list[wire.WeightsUpdate] = field(default_factory=list)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    jobs: dict[str, wire.RolloutsResponse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self._server: uvicorn.Server | None = None

    def __enter__(self) -> Self:
        self._server = uvicorn.Server(
            uvicorn.Config(self._app(), host="127.0.0.1", port=0, log_level="critical", ws="none", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        end = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < end, "the fake judge did not start"
            time.sleep(0.01)
        (port,) = {s.getsockname()[1] for server in self._server.servers for s in server.sockets}
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(10)

    def requests(self, route: str) -> list[dict[str, Any]]:
        return [body for name, body in self.asked if name == route]

    # What it answers ---------------------------------------------------------------------------------------------

    def rollouts(self, request: wire.RolloutsRequest) -> wire.RolloutsResponse:
        step = request.step or 0
        problems = []
        for problem in request.problems:
            prompt = problem.prompt
            ids = list(prompt) if isinstance(prompt, list) and isinstance(prompt[0], int) else [1]
            completions = [self._completion(problem.problem_id, step, i, request) for i in range(request.n)]
            vote = Histogram.of([c.answer for c in completions], problem.task, problem.options).tally()
            problems.append(
                wire.ProblemRollouts(
                    problem_id=problem.problem_id,
                    prompt_token_ids=ids,
                    completions=completions,
                    vote=to_wire(vote, source="rollout", weights=self.loaded),
                    weights=self.loaded,
                )
            )
        return wire.RolloutsResponse(
            member=self.member, run=request.run, step=request.step, problems=problems, weights=self.loaded
        )

    def _completion(self, problem_id: str, step: int, sample: int, request: wire.RolloutsRequest) -> wire.Completion:
        answer = self.answers(problem_id, step, sample)
        text = "no idea" if answer is None else f"\\boxed{{{answer}}}"
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        cut = len(ids) > request.sampling.max_tokens
        ids = ids[: request.sampling.max_tokens]
        return wire.Completion(
            token_ids=ids,
            logprobs=[-1.0 - (token % 5) / 10 for token in ids],
            text=text,
            finish_reason="length" if cut else "stop",
            answer=answer,
        )

    def scores(self, request: wire.ScoresRequest) -> wire.ScoresResponse:
        step, policy = request.step or 0, request.policy
        items = []
        for item in request.items:
            histogram = Histogram.of(
                [self.answers(item.problem_id, step, i) for i in range(policy.samples)], item.task, item.options
            )
            vote = histogram.tally(threshold=policy.threshold, ties=policy.ties, min_parsed=policy.min_parsed)
            found = [text.split("{")[-1].rstrip("}") if "{" in text else None for text in item.completions]
            items.append(
                wire.ScoredItem(
                    id=item.id,
                    problem_id=item.problem_id,
                    status="scored" if vote.labeled else "unlabeled",
                    rewards=rewards(found, vote, task=item.task) if vote.labeled else None,
                    answers=found,
                    vote=to_wire(
                        vote,
                        source="fresh" if self.fresh else "rollout",
                        weights=self.loaded,
                        histogram=histogram if request.histogram else None,
                    ),
                )
            )
        return wire.ScoresResponse(
            member=self.member, run=request.run, step=request.step, items=items, weights=self.loaded, waited_s=0.25
        )

    # HTTP --------------------------------------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = FastAPI()

        async def send(route: str, body: dict[str, Any], answer: Callable[[], Any], code: int = 200) -> Response:
            self.asked.append((route, body))
            if self.delay_s and route in ("rollouts", "scores"):
                await asyncio.sleep(self.delay_s)
            planned = self.faults[route].pop(0) if self.faults[route] else None
            good = answer()
            if isinstance(good, Response):
                return good
            content = good.model_dump(mode="json")
            if planned is not None:
                changed = planned(content)
                if isinstance(changed, Response):
                    return changed
                content = changed
            return JSONResponse(content, code)

        @app.get("/readyz")
        async def readyz() -> Response:
            return Response(status_code=200 if self.ready else 503)

        @app.get("/v1/model")
        async def model() -> Response:
            return await send("model", {}, self._info)

        @app.put("/v1/trainer")
        async def trainer(update: wire.TrainerUpdate) -> Response:
            return await send("trainer", update.model_dump(), lambda: self._lease(update))

        @app.put("/v1/weights")
        async def put_weights(update: wire.WeightsUpdate) -> Response:
            return await send("weights", update.model_dump(), lambda: self._push(update), 202)

        @app.get("/v1/weights")
        async def get_weights() -> Response:
            return await send("loaded", {}, self._status)

        @app.post("/v1/rollouts")
        async def rollouts(request: wire.RolloutsRequest) -> Response:
            return await send("rollouts", request.model_dump(), lambda: self.rollouts(request))

        @app.post("/v1/scores")
        async def scores(request: wire.ScoresRequest) -> Response:
            return await send("scores", request.model_dump(), lambda: self.scores(request))

        @app.post("/v1/jobs")
        async def submit(request: wire.JobRequest) -> Response:
            return await send("jobs", request.model_dump(), lambda: self._submit(request), 202)

        @app.get("/v1/jobs/{job}")
        async def job(job: str) -> Response:
            if job not in self.jobs:
                return status(404, "no such job")({})  # type: ignore[return-value]
            await asyncio.sleep(self.delay_s)
            return await send("job", {}, lambda: self._job(job, "done"))

        @app.delete("/v1/jobs/{job}")
        async def cancel(request: Request, job: str) -> Response:
            self.asked.append(("cancel", {"id": job}))
            return Response(status_code=204)

        return app

    def _info(self) -> wire.ModelInfo:
        return wire.ModelInfo(
            member=self.member,
            model=self.model,
            revision=None,
            frozen=self.frozen,
            tokenizer=wire.TokenizerInfo(
                vocab_size=len(self.tokenizer), eos_token_ids=[self.tokenizer.eos_token_id], chat_template=True
            ),
            weights=self.loaded,
            engine="script",
            engine_version="1",
            limits=wire.Limits(
                max_model_len=512, max_items=64, max_completions=1024, max_samples=64, max_body_bytes=1 << 24
            ),
        )

    def _lease(self, update: wire.TrainerUpdate) -> Any:
        if update.incarnation is None:
            self.incarnation += 1
        elif update.incarnation < self.incarnation:
            return status(409, f"incarnation {self.incarnation} holds the lease")({})
        return wire.TrainerLease(run=update.run, incarnation=self.incarnation, step=update.step, ttl_s=update.ttl_s)

    def _push(self, update: wire.WeightsUpdate) -> Any:
        if update.incarnation < self.incarnation:
            return status(409, f"incarnation {self.incarnation} holds the lease")({})
        self.pushed.append(update)
        accepted = wire.WeightsTag(incarnation=update.incarnation, version=update.version, digest=update.digest)
        self.desired = accepted
        answer = self._status()
        if self.load_fails is None:
            self.loaded = accepted
        else:
            self.desired = None
        return answer

    def _status(self) -> wire.WeightsStatus:
        replica = wire.Replica(
            id=f"{self.member}-0",
            member=self.member,
            state="failed" if self.load_fails else "ready",
            loaded=self.loaded,
            started_at=0.0,
            reload_error=self.load_fails,
        )
        return wire.WeightsStatus(desired=self.desired, replicas=[replica])

    def _submit(self, request: wire.JobRequest) -> wire.JobStatus:
        assert isinstance(request.request, wire.RolloutsRequest)
        job = f"job-{len(self.jobs)}"
        self.jobs[job] = self.rollouts(request.request)
        return self._job(job, "queued")

    def _job(self, job: str, state: str) -> wire.JobStatus:
        result = self.jobs[job] if state == "done" else None
        total = len(self.jobs[job].problems)
        return wire.JobStatus(
            id=job,
            kind="rollouts",
            status=state,
            done=total if result else 0,
            total=total,
            created_at=0.0,
            result=result,
        )
