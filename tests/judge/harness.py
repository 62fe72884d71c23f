"""A judge on a real port over a scripted engine, in this process or in one of its own, and snapshots for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from corl_judge.serve import JudgeServer
from corl_judge.service import Service
from corl_judge.settings import Settings
from safetensors.numpy import save_file

from corl.weights import MANIFEST, FileEntry, Manifest, snapshot_folder, state_digest, tensor_entries
from corl.wire import WeightsTag
from tests.scripted import ScriptedEngine

KEY = {"authorization": "Bearer sesame"}


async def until(condition: Callable[[], Any], *, deadline_s: float = 30.0, every_s: float = 0.01) -> Any:
    """Wait for a condition, sync or async; a hang guard, not a timing."""
    deadline = time.monotonic() + deadline_s
    while True:
        outcome = condition()
        if asyncio.iscoroutine(outcome):
            outcome = await outcome
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s} s: {condition}")
        await asyncio.sleep(every_s)


class QuietServer(JudgeServer):
    """Leaves the test process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class RunningJudge:
    url: str
    engine: ScriptedEngine
    server: QuietServer
    settings: Settings
    http: httpx.AsyncClient
    serving: asyncio.Task[None]

    @property
    def service(self) -> Service:
        service: Service = self.server.app.state.service
        return service

    def hold(self) -> None:
        """Let it claim no work until `release`, whatever its weights are."""
        gate = self.service.replica.gate
        gate.close()
        gate.open = lambda: None  # type: ignore[method-assign]

    def release(self) -> None:
        gate = self.service.replica.gate
        del gate.open
        gate.open()

    async def ready(self) -> None:
        await until(self._ready)

    async def _ready(self) -> bool:
        return (await self.http.get("/readyz")).status_code == 200

    async def post(self, route: str, body: dict[str, Any], *, expect: int = 200) -> dict[str, Any]:
        answer = await self.http.post(route, json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def put(self, route: str, body: dict[str, Any], *, expect: int = 200) -> dict[str, Any]:
        answer = await self.http.put(route, json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def get(self, route: str, *, expect: int = 200) -> dict[str, Any]:
        answer = await self.http.get(route)
        assert answer.status_code == expect, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def stop(self) -> None:
        self.server.should_exit = True
        await asyncio.wait_for(self.serving, 60)
        await self.http.aclose()


FAST = {
    "heartbeat_s": 0.2,
    "replica_ttl_s": 1.0,
    "lease_s": 1.0,
    "poll_s": 0.05,
    "drain_s": 10.0,
    "item_deadline_s": 60.0,
}


def listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


@dataclass
class Judges:
    """Starts judges of one Redis; every one is stopped at the end of the test."""

    redis_url: str
    running: list[RunningJudge] = field(default_factory=list)

    async def start(self, engine: ScriptedEngine | None = None, *, ready: bool = True, **settings: Any) -> RunningJudge:
        settings.setdefault("member", f"m{uuid.uuid4().hex[:10]}")
        made = Settings(**{**FAST, "redis": self.redis_url, **settings})
        engine = engine or ScriptedEngine()
        server = QuietServer(made, engine)
        listener = listen()
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        limits = httpx.Limits(max_connections=None)
        key = {} if made.api_key is None else {"authorization": f"Bearer {made.api_key.get_secret_value()}"}
        http = httpx.AsyncClient(base_url=url, timeout=60, limits=limits, headers=key)
        judge = RunningJudge(url, engine, server, made, http, serving)
        self.running.append(judge)
        await until(lambda: server.started or serving.done())
        if ready:
            await judge.ready()
        return judge

    async def stop_all(self) -> None:
        for judge in self.running:
            if isinstance(judge.engine, ScriptedEngine):
                judge.engine.gate.set()
                judge.engine.load_gate.set()
        await asyncio.gather(*(judge.stop() for judge in self.running if not judge.serving.done()))


@contextlib.asynccontextmanager
async def judges_of(redis_url: str) -> AsyncIterator[Judges]:
    judges = Judges(redis_url)
    try:
        yield judges
    finally:
        await judges.stop_all()


# Snapshots -----------------------------------------------------------------------------------------------------------


def publish(
    root: Path, member: str, version: int, *, incarnation: int = 1, run: str = "r", value: float | None = None
) -> dict[str, Any]:
    """Write a snapshot of one small tensor; the body of the PUT that announces it."""
    folder = snapshot_folder(root, run, member, incarnation, version)
    folder.mkdir(parents=True)
    tensor = np.full((2, 3), float(version) if value is None else value, dtype=np.float32)
    save_file({"w": tensor}, folder / "model.safetensors")
    tensors = list(tensor_entries([folder / "model.safetensors"]))
    manifest = Manifest(
        run=run,
        member=member,
        incarnation=incarnation,
        version=version,
        step=version,
        dtype="F32",
        files=[FileEntry(name="model.safetensors", bytes=(folder / "model.safetensors").stat().st_size)],
        tensors=tensors,
        state_digest=state_digest(tensors),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return {
        "run": run,
        "incarnation": incarnation,
        "version": version,
        "digest": manifest.state_digest,
        "uri": str(folder.relative_to(root)),
    }


def corrupt(root: Path, update: dict[str, Any]) -> None:
    """Flip one bit of the last tensor byte: sizes and headers stay right."""
    path = root / update["uri"] / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def tag_of(update: dict[str, Any]) -> WeightsTag:
    return WeightsTag(incarnation=update["incarnation"], version=update["version"], digest=update["digest"])


# Requests ------------------------------------------------------------------------------------------------------------


def rollouts(*problem_ids: str, n: int = 4, **more: Any) -> dict[str, Any]:
    problems = [{"problem_id": p, "prompt": f"problem {p}"} for p in problem_ids]
    return {"problems": problems, "n": n, "sampling": {"max_tokens": 64}, **more}


def item(problem_id: str, *completions: str, **more: Any) -> dict[str, Any]:
    return {
        "id": problem_id,
        "problem_id": problem_id,
        "prompt": f"problem {problem_id}",
        "completions": list(completions),
        **more,
    }


def scores(*items: dict[str, Any], policy: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"items": list(items), "policy": policy or {}, **more}


# Processes -----------------------------------------------------------------------------------------------------------


@dataclass
class JudgeProcess:
    """`tests/judge/process.py` on a free port."""

    process: asyncio.subprocess.Process
    url: str
    log: Path

    @classmethod
    async def start(
        cls,
        folder: Path,
        redis_url: str,
        *,
        answers: list[str],
        delay_s: float = 0.0,
        name: str = "judge",
        **settings: Any,
    ) -> JudgeProcess:
        listener = listen()
        port = listener.getsockname()[1]
        listener.close()
        log = folder / f"{name}.log"
        asked = {**FAST, "redis": redis_url, "port": port, "log_format": "json", **settings}
        engine = {"answers": answers, "delay_s": delay_s}
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.judge.process",
                json.dumps({"settings": asked, "engine": engine}, default=str),
                stderr=sink,
                stdout=sink,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        return cls(process, f"http://127.0.0.1:{port}", log)

    async def ready(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=5) as http:

            async def accepting() -> bool:
                assert self.process.returncode is None, self.log.read_text()
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get("/readyz")).status_code == 200
                return False

            await until(accepting, deadline_s=90, every_s=0.05)

    def send(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
