"""Connections to Redis: any `redis://`, `rediss://` or `unix://` URL, made anew with backoff when they are lost."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Iterable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from corl.errors import CorlError
from corl.localredis import hide_password

__all__ = ["RedisUnavailable", "check_redis", "connect"]

log = logging.getLogger(__name__)

OLDEST = (6, 2)


class RedisUnavailable(CorlError):
    """Redis cannot be used. The message names the URL with its password hidden, the cause and the remedy."""


def connect(url: str, *, max_connections: int = 32, client_name: str | None = None) -> Redis:
    """A client over a bounded pool: beyond `max_connections` commands wait for a free one. Connects with first use.

    A command is sent again up to five times within about four seconds when its connection breaks, so commands must
    bear being carried out twice. Raises RedisUnavailable for a URL that is none.
    """
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "timeout": 60.0,
        "socket_connect_timeout": 5.0,
        "socket_timeout": 15.0,
        "health_check_interval": 30,
        "client_name": client_name,
        # One protocol for every version of the client library; RESP3 brings nothing here.
        "protocol": 2,
        "retry": Retry(ExponentialWithJitterBackoff(cap=2.0, base=0.05), 5),
        "retry_on_error": [RedisConnectionError, RedisTimeoutError, BusyLoadingError, OSError],
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        pool = BlockingConnectionPool.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise RedisUnavailable(
            f"{hide_password(url)} is no Redis URL ({error}): give redis://HOST:PORT/DB, rediss://... or unix://PATH"
        ) from error
    pool.connection_class = _cancellable(pool.connection_class)
    return Redis(connection_pool=pool)


def _cancellable(base: type[AbstractConnection]) -> type[AbstractConnection]:
    """A connection whose commands can be cancelled at any moment.

    The client library sends by `asyncio.wait_for`, which before Python 3.12 drops a cancellation that comes just as
    the sending is done: the task then goes on, and whoever waits for its end waits for ever.
    """

    class Cancellable(base):  # type: ignore[misc, valid-type]
        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            task = asyncio.current_task()
            before = task.cancelling() if task is not None else 0
            await super().send_packed_command(command, check_health)
            if task is not None and task.cancelling() > before:
                await self.disconnect(nowait=True)  # a reply is on its way that nobody will read
                raise asyncio.CancelledError

    return Cancellable


async def check_redis(redis: Redis, url: str, *, deadline_s: float = 30.0) -> None:
    """Return once Redis answers and is new enough; `url` is for the message only.

    Raises RedisUnavailable at once for a refused password or an old server, else at the deadline.
    """
    shown = hide_password(url)
    deadline = time.monotonic() + deadline_s
    delay = 0.05
    cause = "no answer"
    while True:
        left = deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.1)):
                info = await redis.info()
            break
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise RedisUnavailable(f"Redis at {shown} refused the login ({error}): check user and password") from error
        except (RedisError, OSError, TimeoutError) as error:
            cause = str(error) or cause  # the deadline's own TimeoutError says nothing
            if left - delay <= 0:
                raise RedisUnavailable(
                    f"Redis at {shown} did not answer within {deadline_s:g} s ({cause}): start it, or correct the URL"
                ) from error
            log.info("waiting for Redis at %s: %s", shown, error)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, 2.0)
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise RedisUnavailable(f"Redis at {shown} is version {version}: 6.2 or newer is needed (or Valkey)")
    if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
        log.warning(
            "Redis at %s may evict jobs and votes when its memory is full (maxmemory-policy %s): set it to noeviction",
            shown,
            info.get("maxmemory_policy"),
        )
