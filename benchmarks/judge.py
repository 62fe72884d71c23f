"""What a judge costs over its engine.

    python benchmarks/judge.py [--scores] [--overhead] [--lockstep]      (all three if none is named)

*Scores*: completions judged a second through HTTP when the votes are filed, by a judge process held to one core with
its grader; beside math-verify (extra `audit`), with which the paper's trainer grades, on the same texts in the same
run.

*Overhead*: a `POST /v1/rollouts` of 32 problems with 8 samples each over the bare engine on the same prompts, in turns
in one process: the ratio of the medians of wall and of CPU seconds. The engine is transformers on a tiny random model,
which answers within a second or two; with a real model the same milliseconds are a smaller share.

*Lock-step*: tokens that two members generate for votes while two trainers take steps in lock-step: none.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from corl.localredis import LocalRedis

sys.path.insert(0, str(Path(__file__).parent.parent))

PROBLEMS, SAMPLES, TOKENS = 32, 8, 64
TEXT = "Let us see. First we add the two numbers, then we check the sum by subtracting one of them again. " * 5
PROMPT = "Question {i}: what is {i} plus {j}?"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def judge_process(
    redis: str, member: str, *, core: int | None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A judge over a scripted engine, which costs nothing, on one core."""
    port = free_port()
    asked = {
        "settings": {"member": member, "redis": redis, "port": port, "log_level": "warning", **settings},
        "engine": {"answers": ["4", "4", "4", "5"], "delay_s": 0.0},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.judge.process",
        json.dumps(asked),
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
            while True:
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                if process.returncode is not None:
                    raise SystemExit("the judge ended before it was ready")
                await asyncio.sleep(0.05)
            yield http
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def rollouts(run: str, step: int, ids: list[str], **more: Any) -> dict[str, Any]:
    problems = [{"problem_id": p, "prompt": f"problem {p}"} for p in ids]
    return {"problems": problems, "n": SAMPLES, "sampling": {"max_tokens": TOKENS}, "run": run, "step": step, **more}


def scores(run: str, step: int, ids: list[str], texts: list[str], **policy: Any) -> dict[str, Any]:
    items = [{"id": p, "problem_id": p, "prompt": f"problem {p}", "completions": texts} for p in ids]
    return {"items": items, "run": run, "step": step, "policy": policy}


# Scores --------------------------------------------------------------------------------------------------------------


async def scores_per_second(seconds: float) -> None:
    texts = [f"{TEXT}So the answer is \\boxed{{{a}}}." for a in ("4", "\\frac{8}{2}", "5", "4.0", "x+1", "", "12", "4")]
    ids = [f"p{i}" for i in range(PROBLEMS)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    core = cores[-1] if len(cores) > 1 else None
    with LocalRedis() as redis:
        async with judge_process(redis.url, "bench", core=core) as http:
            (await http.post("/v1/rollouts", json=rollouts("r", 0, ids))).raise_for_status()
            for problems in (1, PROBLEMS, 8 * PROBLEMS):
                wanted = [f"p{i % PROBLEMS}" for i in range(problems)]
                body = scores("r", 0, wanted, texts)
                for index, item in enumerate(body["items"]):
                    item["id"] = str(index)
                content = json.dumps(body).encode()
                done = 0
                latencies: list[float] = []
                end = time.perf_counter() + seconds

                async def ask(content: bytes = content, problems: int = problems) -> None:
                    nonlocal done
                    while time.perf_counter() < end:  # noqa: B023
                        started = time.perf_counter()
                        answer = await http.post("/v1/scores", content=content)
                        answer.raise_for_status()
                        latencies.append(time.perf_counter() - started)  # noqa: B023
                        done += problems * len(texts)

                started = time.perf_counter()
                await asyncio.gather(*(ask() for _ in range(4)))
                passed = time.perf_counter() - started
                print(
                    f"  {problems:4d} problems x {len(texts)} a request: {done / passed:8.0f} completions/s, "
                    f"median {1000 * statistics.median(latencies):.1f} ms with 4 requests at once"
                )
    _math_verify(texts)


def _math_verify(texts: list[str]) -> None:
    try:
        from math_verify import parse, verify
    except ImportError:
        print("  math-verify: not installed (extra `audit`)")
        return
    gold = parse("\\boxed{4}")
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < 3.0:
        for text in texts:
            verify(gold, parse(text))
            count += 1
    print(f"  math-verify alone, one process, no HTTP: {count / (time.perf_counter() - started):8.0f} completions/s")


# Overhead ------------------------------------------------------------------------------------------------------------


async def overhead(rounds: int) -> None:
    from corl_judge.engines import make_engine
    from corl_judge.engines.base import GenerateRequest

    from corl.wire import Sampling
    from tests.judge.harness import Judges
    from tests.tiny_models import make_llama

    with tempfile.TemporaryDirectory() as scratch, LocalRedis() as redis:
        model = make_llama(Path(scratch) / "model")
        engine = make_engine("transformers", str(model), options={"max_num_seqs": PROBLEMS * SAMPLES})
        judges = Judges(redis.url)
        judge = await judges.start(engine, member="bench", probe_every_s=3600)  # type: ignore[arg-type]
        sampling = Sampling(max_tokens=TOKENS)
        prompts = [PROMPT.format(i=i, j=i + 1) for i in range(PROBLEMS)]
        ids = [engine.encode(prompt) for prompt in prompts]

        async def bare(round_: int) -> None:
            await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(prompt, tokens, SAMPLES, sampling, 1000 * round_ + i))
                    for i, (prompt, tokens) in enumerate(zip(prompts, ids, strict=True))
                )
            )

        async def through_http(round_: int) -> None:
            body = rollouts("r", round_, [str(i) for i in range(PROBLEMS)])
            for problem, tokens in zip(body["problems"], ids, strict=True):
                problem["prompt"] = tokens
            (await judge.http.post("/v1/rollouts", json=body)).raise_for_status()

        async def timed(work: Callable[[int], Awaitable[None]], round_: int) -> tuple[float, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            await work(round_)
            return time.perf_counter() - wall, time.process_time() - cpu

        for round_ in range(2):
            await bare(round_)
            await through_http(round_)
        pairs = [(await timed(bare, r), await timed(through_http, r)) for r in range(2, rounds + 2)]
        for index, clock in enumerate(("wall", "CPU")):
            before, after = (statistics.median(pair[which][index] for pair in pairs) for which in (0, 1))
            extra = statistics.median(pair[1][index] - pair[0][index] for pair in pairs)
            print(
                f"  {PROBLEMS} x {SAMPLES} x {TOKENS} tokens, {clock}: engine {before:.3f} s, request {after:.3f} s, "
                f"ratio {after / before:.3f} (median difference {1000 * extra:.0f} ms, the client's own work in it)"
            )
        await judge.stop()


# Lock-step -----------------------------------------------------------------------------------------------------------


async def lockstep(steps: int) -> None:
    with LocalRedis() as redis:
        async with judge_process(redis.url, "a", core=None) as a, judge_process(redis.url, "b", core=None) as b:

            async def trainer(own: httpx.AsyncClient, teacher: httpx.AsyncClient) -> None:
                for step in range(steps):
                    lease = {"run": "r", "step": step, "ttl_s": 30}
                    (await own.put("/v1/trainer", json=lease)).raise_for_status()
                    ids = [f"s{step}p{i}" for i in range(PROBLEMS)]
                    (await own.post("/v1/rollouts", json=rollouts("r", step, ids))).raise_for_status()
                    asked = scores("r", step, ids, ["\\boxed{4}"] * SAMPLES, wait_s=60)
                    answer = await teacher.post("/v1/scores", json=asked)
                    answer.raise_for_status()
                    assert all(item["status"] == "scored" for item in answer.json()["items"])

            started = time.perf_counter()
            await asyncio.gather(trainer(a, b), trainer(b, a))
            passed = time.perf_counter() - started
            tokens = {name: sum([await _tokens(http, name) for http in (a, b)]) for name in ("rollouts", "votes")}
    print(
        f"  {steps} steps of {PROBLEMS} x {SAMPLES}: {tokens['rollouts']:.0f} tokens for rollouts, "
        f"{tokens['votes']:.0f} for votes; {1000 * passed / steps:.0f} ms a step with engines that cost nothing"
    )


async def _tokens(http: httpx.AsyncClient, work: str) -> float:
    for line in (await http.get("/metrics")).text.splitlines():
        if line.startswith(f'corl_generated_tokens_total{{work="{work}"}}'):
            return float(line.split()[-1])
    return 0.0


def main(
    scores: Annotated[bool, typer.Option("--scores")] = False,
    overhead_: Annotated[bool, typer.Option("--overhead")] = False,
    lockstep_: Annotated[bool, typer.Option("--lockstep")] = False,
    seconds: Annotated[float, typer.Option(help="for each size of score request")] = 4.0,
    rounds: Annotated[int, typer.Option(help="of engine and request in turn")] = 7,
    steps: Annotated[int, typer.Option(help="in lock-step")] = 10,
) -> None:
    """Run the benchmarks that are named, or all."""
    every = not (scores or overhead_ or lockstep_)
    if scores or every:
        print("scores, votes filed:")
        asyncio.run(scores_per_second(seconds))
    if overhead_ or every:
        print("rollouts over the bare engine:")
        asyncio.run(overhead(rounds))
    if lockstep_ or every:
        print("lock-step:")
        asyncio.run(lockstep(steps))


if __name__ == "__main__":
    typer.run(main)
