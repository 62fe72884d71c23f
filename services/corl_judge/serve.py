"""Run a judge until a signal drains it or its engine dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from corl.localredis import LocalRedis
from corl_judge import logs
from corl_judge.app import create_app
from corl_judge.engines import make_engine
from corl_judge.engines.base import Engine, EngineError
from corl_judge.redisio import RedisUnavailable, check_redis, connect
from corl_judge.service import Service
from corl_judge.settings import Settings

__all__ = ["JudgeServer", "allow_connections", "serve"]

log = logging.getLogger(__name__)

LAST_REQUESTS_S = 5.0
OPEN_FILES = 65_536


def serve(settings: Settings, engine: Engine | None = None) -> int:
    """The exit code: 0 after a drain, 1 when it cannot start or its engine died; the log has the cause."""
    key = None if settings.api_key is None else settings.api_key.get_secret_value()
    logs.configure(settings.log_format, settings.log_level, [key] if key else [], member=settings.member)
    allow_connections()
    with contextlib.ExitStack() as stack:
        if settings.redis is None:
            url = stack.enter_context(LocalRedis()).url
            settings = settings.model_copy(update={"redis": SecretStr(url)})
        try:
            if engine is None:
                engine = make_engine(
                    settings.engine, settings.model, revision=settings.revision, options=settings.engine_options
                )
            server = JudgeServer(settings, engine)
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                return runner.run(_serve(settings, server))
        except (EngineError, RedisUnavailable, OSError) as error:
            log.error("the judge cannot start: %s", error)
            return 1


def allow_connections() -> None:
    """Raise the soft limit of open files as far as the hard one lets: trainers that send one sample a request hold
    thousands of connections, and the usual soft limit is 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings, server: JudgeServer) -> int:
    assert settings.redis is not None
    url = settings.redis.get_secret_value()
    redis = connect(url)
    try:
        await check_redis(redis, url)
    finally:
        await redis.aclose()
    with _listening(settings) as listener:
        log.info("judge of member %s at http://%s:%d", settings.member, *listener.getsockname()[:2])
        await server.serve([listener])
    if not server.started and server.exit_code == 0:
        return 1
    return server.exit_code


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {settings.host}:{settings.port} ({error}): choose another --port") from error
    return listener


class JudgeServer(uvicorn.Server):
    """Uvicorn, but a signal first drains the replica while it still answers probes, and a dead engine ends it."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.exit_code = 0
        self.app: FastAPI = create_app(settings, engine, on_death=self._on_death)
        self._drain: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                self.app,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(LAST_REQUESTS_S),
                backlog=4096,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler. Not recorded as uvicorn does, which would raise the signal again at the end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(sig).name)

    def _on_signal(self, name: str) -> None:
        service: Service | None = getattr(self.app.state, "service", None)
        if self._drain is not None or service is None:
            log.warning("%s: ending now", name)
            self.should_exit = self.force_exit = True
            return
        log.info("%s: draining", name)
        self._drain = asyncio.ensure_future(self._drained(service))

    async def _drained(self, service: Service) -> None:
        try:
            await service.drain()
        finally:
            self.should_exit = True

    def _on_death(self, error: BaseException) -> None:
        self.exit_code = 1
        self.should_exit = True
