"""A replica for the chaos test: the real worker over a handler that does what an item's payload says."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal

from corl_judge.jobs import JobQueue, Lease, QueueSettings
from corl_judge.redisio import connect
from corl_judge.worker import Done, Worker

SETTINGS = QueueSettings(lease_s=1.5, max_failures=3, max_lapses=8, ttl_s=600.0)


def truth(key: str) -> bytes:
    """The only right result of an item, whoever makes it."""
    return hashlib.sha256(key.encode()).digest()


async def handle(_queue: str, lease: Lease) -> Done:
    match lease.payload:
        case b"kills its worker":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"raises":
            raise ValueError(lease.key)
        case b"raises once" if lease.failures == 0:
            raise ValueError(lease.key)
        case b"slow":
            await asyncio.sleep(0.5)
    await asyncio.sleep(0.01)
    return Done(truth(lease.key))


def main(url: str, namespace: str, consumer: str) -> None:
    """Works until SIGTERM."""
    asyncio.run(_work(url, namespace, consumer))


async def _work(url: str, namespace: str, consumer: str) -> None:
    redis = connect(url)
    queue = JobQueue(redis, namespace, SETTINGS)
    worker = Worker({"work": queue}, handle, consumer=consumer, capacity=8)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    running = asyncio.create_task(worker.run())
    await stopped.wait()
    await worker.stop(grace_s=0.2)
    await running
    await redis.aclose()
