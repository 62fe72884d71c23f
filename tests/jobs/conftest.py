"""Every queue test runs on every server that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from corl_judge.jobs import JobQueue, QueueSettings
from corl_judge.redisio import connect
from redis.asyncio import Redis

from tests.jobs.servers import local_redis, servers


@pytest.fixture(scope="session", params=servers().values(), ids=servers().keys())
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with local_redis(request.param) as server:
        yield server.url


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose Unix socket keeps its path over restarts: a longer one is moved elsewhere each time."""
    return tmp_path_factory.mktemp("r")


@pytest.fixture
async def redis(redis_url: str, redis_namespace: str) -> AsyncIterator[Redis]:
    """A client; afterwards no key of the test may be one that never expires."""
    client = connect(redis_url)
    yield client
    lasting = [key async for key in client.scan_iter(f"{redis_namespace}*") if await client.pttl(key) == -1]
    await client.aclose()
    assert lasting == []


@pytest.fixture
async def queue(redis: Redis, redis_namespace: str) -> AsyncIterator[JobQueue]:
    queue = JobQueue(redis, redis_namespace, QueueSettings(lease_s=60.0))
    yield queue
    await queue.aclose()
