"""Every queue test runs on every server that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from corl_judge.jobs import JobQueue, QueueSettings
from corl_judge.redisio import connect
from redis.asyncio import Redis

from corl.localredis import LocalRedis
from tests.jobs.servers import servers, using


@pytest.fixture(scope="session", params=servers().values(), ids=servers().keys())
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param), LocalRedis() as server:
        yield server.url


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose Unix socket keeps its path over restarts: a longer one is moved elsewhere each time."""
    return tmp_path_factory.mktemp("r")


@pytest.fixture(params=servers().values(), ids=servers().keys())
def own_server(request: pytest.FixtureRequest, short_path: Path) -> Iterator[LocalRedis]:
    """A server of the test's own, with the append-only file, that it may stop, kill and start."""
    with using(request.param), LocalRedis(short_path, append_only=True) as server:
        yield server


@pytest.fixture
async def redis(redis_url: str, redis_namespace: str) -> AsyncIterator[Redis]:
    """A client; afterwards no key of the test may be one that never expires."""
    client = connect(redis_url)
    yield client
    keys = [key async for key in client.scan_iter(f"{redis_namespace}*", count=1000)]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.pttl(key)
    lasting = [key for key, left in zip(keys, await pipe.execute(), strict=True) if left == -1]
    await client.aclose()
    assert lasting == []


@pytest.fixture
async def queue(redis: Redis, redis_namespace: str) -> AsyncIterator[JobQueue]:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=60.0))
    yield queue
    await queue.aclose()
