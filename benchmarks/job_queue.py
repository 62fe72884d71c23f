"""What the job queue costs: items per second, added latency, and whether a backlog changes either.

    python benchmarks/job_queue.py [--redis URL] [--rounds N]

Everything, a local Redis included, is pinned to one core. Per item: submit (16 a call, as a trainer's step would),
claim (up to 16 free slots), complete. Payload 1 kB, result 16 kB. Items are counted per second of processor time that
client and server took together, which is what one core of an idle machine does. The two backlogs are measured in
turns, so that other load on the machine touches both alike; the ratio is of their medians.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Annotated

import typer
from corl_judge.jobs import Item, JobQueue, Lease, QueueSettings
from corl_judge.redisio import check_redis, connect
from corl_judge.worker import Done, Worker

from corl.localredis import LocalRedis

PAYLOAD, RESULT = os.urandom(1024), os.urandom(16_384)
CALL = 16
BACKLOGS = (1_000, 10_000)


async def processor_s(queue: JobQueue) -> float:
    """Processor time used so far by this process and the server."""
    info = await queue.redis.info("cpu")
    return time.process_time() + float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def items_per_second(queue: JobQueue, count: int) -> float:
    """`count` items come, and `count` leave from the head of the backlog."""
    start = await processor_s(queue)
    for _ in range(count // CALL):
        await queue.submit_many([Item(uuid.uuid4().hex, PAYLOAD) for _ in range(CALL)], asker="bench")
        leases = await queue.claim("bench", CALL)
        await asyncio.gather(*(queue.complete(lease, RESULT) for lease in leases))
    return count / (await processor_s(queue) - start)


async def latencies_ms(queues: Sequence[JobQueue], count: int) -> list[float]:
    """Median time of one item's submit, claim, complete and notice, one after the other; the queues in turn."""
    times: list[list[float]] = [[] for _ in queues]
    for _ in range(count):
        for queue, taken in zip(queues, times, strict=True):
            start = time.perf_counter()
            await queue.submit(uuid.uuid4().hex, PAYLOAD, asker="bench")
            [lease] = await queue.claim("bench", 1)
            waiting = asyncio.create_task(queue.wait([lease.job], timeout_s=10.0))
            await queue.complete(lease, RESULT)
            await waiting
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) * 1000 for taken in times]


async def worker_latency_ms(queue: JobQueue, count: int) -> float:
    """Median time from submit to result in hand, through an idle worker whose handler takes no time."""

    async def handler(_queue: str, _lease: Lease) -> Done:
        return Done(RESULT)

    worker = Worker({"bench": queue}, handler, consumer="bench", capacity=8)
    running = asyncio.create_task(worker.run())
    times = []
    for _ in range(count):
        start = time.perf_counter()
        ticket = await queue.submit(uuid.uuid4().hex, PAYLOAD, asker="bench")
        await queue.wait([ticket.job], timeout_s=10.0)
        times.append(time.perf_counter() - start)
        await asyncio.sleep(0.002)  # the worker is idle again
    await worker.stop()
    await running
    return statistics.median(times) * 1000


async def measure(url: str, rounds: int) -> None:
    redis = connect(url)
    await check_redis(redis, url)
    settings = QueueSettings(ttl_s=120.0, stream_ttl_s=120.0)
    queues = {n: JobQueue(redis, f"corl-bench:{uuid.uuid4().hex}", settings) for n in BACKLOGS}
    for backlog, queue in queues.items():
        for _ in range(0, backlog, 500):
            await queue.submit_many([Item(uuid.uuid4().hex, PAYLOAD) for _ in range(500)], asker="bench")
        await items_per_second(queue, 320)  # warm
    rates: dict[int, list[float]] = {n: [] for n in BACKLOGS}
    for _ in range(rounds):
        for backlog, queue in queues.items():
            rates[backlog].append(await items_per_second(queue, 800))
    before = await processor_s(queue)
    delay = dict(zip(BACKLOGS, await latencies_ms(list(queues.values()), 100 * rounds), strict=True))
    work_ms = (await processor_s(queue) - before) * 1000 / (100 * rounds * len(BACKLOGS))
    idle = JobQueue(redis, f"corl-bench:{uuid.uuid4().hex}", settings)
    through_worker = await worker_latency_ms(idle, 200)

    small, large = BACKLOGS
    rate = {n: statistics.median(values) for n, values in rates.items()}
    print(f"items per second          {rate[small]:8.0f}   (aim: at least 2000)")
    print(f"  with 10x the backlog    {rate[large]:8.0f}   ratio {rate[large] / rate[small]:.2f} (aim: at least 0.80)")
    print(f"one item, median ms       {delay[small]:8.2f}   (aim: under 3)")
    print(
        f"  with 10x the backlog    {delay[large]:8.2f}   ratio {delay[large] / delay[small]:.2f} (aim: at most 1.20)"
    )
    print(f"  of it processor time    {work_ms:8.2f}   (mean; the rest is waiting for a core that others use)")
    print(f"  through an idle worker  {through_worker:8.2f}   (aim: under 3)")
    for queue in (*queues.values(), idle):
        await queue.aclose()
        keys = [key async for key in redis.scan_iter(f"{queue.namespace}*", count=1000)]
        if keys:
            await redis.unlink(*keys)
    await redis.aclose()


def main(
    redis: Annotated[str | None, typer.Option(help="URL; a local server is started if none is given")] = None,
    rounds: int = 5,
) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if redis is not None:
        asyncio.run(measure(redis, rounds))
        return
    with LocalRedis() as server:
        asyncio.run(measure(server.url, rounds))


if __name__ == "__main__":
    typer.run(main)
