"""Connections: any URL, one clear error, hidden passwords, lost connections, cancelled commands."""

from __future__ import annotations

import asyncio
import logging

import pytest
from corl_judge.redisio import RedisUnavailable, check_redis, connect

from corl.localredis import LocalRedis
from tests.jobs.polling import DEADLINE_S


@pytest.mark.parametrize(
    "url", ["http://localhost", "localhost:6379", "redis://h:port", "redis://h?socket_timeout=x", ""]
)
def test_what_is_no_redis_url_is_refused(url: str) -> None:
    with pytest.raises(RedisUnavailable, match=r"is no Redis URL.*give redis://HOST:PORT/DB, rediss://"):
        connect(url)


@pytest.mark.parametrize(
    "url", ["redis://u:secret@127.0.0.1:1/0", "rediss://:secret@127.0.0.1:1", "unix:///no/socket?password=secret"]
)
async def test_a_missing_redis_is_one_clear_error_without_the_password(url: str) -> None:
    client = connect(url)
    with pytest.raises(RedisUnavailable, match=r"did not answer within 0\.1 s .*start it, or correct the URL") as error:
        await check_redis(client, url, deadline_s=0.1)
    assert "secret" not in str(error.value)
    assert url.partition("://")[0] in str(error.value)
    await client.aclose()


async def test_a_refused_password_is_said_at_once() -> None:
    with LocalRedis(port=0) as server:
        url = server.url.replace(":", ":x", 2).replace("redis:x", "redis:")
        client = connect(url)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(RedisUnavailable, match=r"refused the login .*check user and password") as error:
                await check_redis(client, url, deadline_s=1000.0)
        assert "***" in str(error.value)
        await client.aclose()
        client = connect(server.url)
        await check_redis(client, server.url)
        await client.aclose()


async def test_a_redis_that_comes_late_is_waited_for(own_server: LocalRedis) -> None:
    url = own_server.url
    own_server.stop()
    client = connect(url)
    checking = asyncio.create_task(check_redis(client, url, deadline_s=DEADLINE_S))
    await asyncio.sleep(0)
    await asyncio.to_thread(own_server.start)
    await checking
    await client.aclose()


async def test_a_restart_is_not_seen_by_commands(own_server: LocalRedis) -> None:
    client = connect(own_server.url)
    await client.set("key", "value")
    await asyncio.to_thread(own_server.stop)
    reading = asyncio.create_task(client.get("key"))
    await asyncio.to_thread(own_server.start)
    assert await reading == b"value"
    await client.aclose()


async def test_more_commands_than_connections_wait_their_turn(redis_url: str) -> None:
    client = connect(redis_url, max_connections=3)
    before = int((await client.info("clients"))["connected_clients"])
    answers = await asyncio.gather(*(client.ping() for _ in range(500)))
    assert all(answers)
    assert int((await client.info("clients"))["connected_clients"]) <= before + 2
    await client.aclose()


async def test_a_command_can_be_cancelled_at_any_moment(redis_url: str) -> None:
    """The client library loses some cancellations on Python 3.11; a loop around commands would never end."""
    for moment in range(1000):
        client = connect(redis_url)
        task = asyncio.create_task(client.ping())
        for _ in range(moment):
            await asyncio.sleep(0)
        over = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert over or task.cancelled(), f"cancelled after {moment} turns of the loop, and not ended by it"
        assert await client.ping()  # no reply of the cancelled one is in the way
        await client.aclose()
        if over:
            return
    raise AssertionError("the command never ended")


async def test_a_redis_that_may_evict_is_warned_of(own_server: LocalRedis, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(own_server.url)
    await client.config_set("maxmemory", "100mb")
    with caplog.at_level(logging.WARNING):
        await check_redis(client, own_server.url)
        assert caplog.text == ""
        await client.config_set("maxmemory-policy", "allkeys-lru")
        await check_redis(client, own_server.url)
    assert "set it to noeviction" in caplog.text
    await client.aclose()
