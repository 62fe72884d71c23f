"""What a judge's answers to other trainers cost, with the votes in its book, on one core.

    python benchmarks/callers.py [--seconds 5]

The same samples, one in a request (`/compat/slime/score`, as its client sends them, from `--callers` connections) and
batched (`/v1/scores`, 256 problems with 8 completions each in a request), by a judge process that is held to one core
with its grader. The engine is scripted, and votes are sampled before the clock starts. Samples of a problem come
together, as rollouts of a group do, or scattered: together they coalesce.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Annotated

import httpx
import typer

from corl.localredis import LocalRedis

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.judge import judge_process

PROBLEMS, ROLLOUTS = 256, 8
TEXT = "Let us see. First we add the two numbers, then we check the sum by subtracting one of them again. " * 5
ANSWERS = ("4", "\\frac{8}{2}", "5", "4.0", "x+1", "", "12", "4")


def prompt(problem: int) -> str:
    return f"Question {problem}: what is {problem} plus {problem + 1}?"


def completion(rollout: int) -> str:
    return f"{TEXT}So the answer is \\boxed{{{ANSWERS[rollout]}}}."


async def main(seconds: float, callers: int) -> None:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    core = cores[-1] if len(cores) > 1 else None
    items = [
        {
            "id": str(p),
            "problem_id": str(p),
            "prompt": prompt(p),
            "completions": [completion(r) for r in range(ROLLOUTS)],
        }
        for p in range(PROBLEMS)
    ]
    batch = json.dumps({"items": items, "policy": {"samples": 8}}).encode()
    with LocalRedis() as redis:
        async with judge_process(redis.url, "bench", core=core, compat_samples=8) as http:
            (await http.post("/v1/scores", content=batch)).raise_for_status()
            together = [(p, r) for p in range(PROBLEMS) for r in range(ROLLOUTS)]
            scattered = [(p, r) for r in range(ROLLOUTS) for p in range(PROBLEMS)]
            rates = {}
            for name, order in (("together", together), ("scattered", scattered)):
                rates[name] = await _singles(http.base_url.port or 0, cycle(order), seconds, callers, name)
            batched = await _batched(http, batch, seconds)
    for name, rate in rates.items():
        print(f"  batched over one by one, {name}: {batched / rate:.1f} times the samples")


async def _singles(port: int, samples: Iterator[tuple[int, int]], seconds: float, callers: int, name: str) -> float:
    end = time.perf_counter() + seconds
    latencies: list[float] = []

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            problem, rollout = next(samples)
            body = json.dumps({"prompt": prompt(problem), "response": completion(rollout), "label": None})
            started = time.perf_counter()
            start = f"POST /compat/slime/score HTTP/1.1\r\nhost: judge\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write((start + body).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise SystemExit(head.decode())
            [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length.partition(b":")[2]))
            latencies.append(time.perf_counter() - started)
        writer.close()

    passed = await _timed(lambda: asyncio.gather(*(caller() for _ in range(callers))))
    rate = len(latencies) / passed
    median = 1000 * statistics.median(latencies)
    print(f"  one by one, {name}: {rate:8.0f} requests/s, median {median:.1f} ms with {callers} callers")
    return rate


async def _batched(http: httpx.AsyncClient, batch: bytes, seconds: float) -> float:
    end = time.perf_counter() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            (await http.post("/v1/scores", content=batch)).raise_for_status()
            done += 1

    passed = await _timed(lambda: asyncio.gather(*(caller() for _ in range(2))))
    rate = done * PROBLEMS * ROLLOUTS / passed
    print(f"  batched: {rate:8.0f} samples/s, {done / passed:.1f} requests/s of {PROBLEMS} problems x {ROLLOUTS}")
    return rate


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def run(
    seconds: Annotated[float, typer.Option(help="for each figure")] = 5.0,
    callers: Annotated[int, typer.Option(help="connections of the one-by-one figures")] = 64,
) -> None:
    print("Samples judged a second, votes in the book, one core")
    asyncio.run(main(seconds, callers))


if __name__ == "__main__":
    typer.run(run)
