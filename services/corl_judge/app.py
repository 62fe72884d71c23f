"""The application factory: `create_app(settings, engine)`.

uvicorn runs it in `cli.py`; a test, or another program, can mount it as any ASGI application:

app = create_app(Settings(member="a", redis="redis://localhost"), engine)
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from redis.exceptions import RedisError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corl_judge import docs, errors, openapi
from corl_judge.auth import PROBES, RequireKey
from corl_judge.engines.base import Engine
from corl_judge.limits import BodyLimit
from corl_judge.logs import bound
from corl_judge.routes import compat, compat_nemo, health, jobs, model, rollouts, scores, trainer, weights
from corl_judge.routes.answering import ClientGone
from corl_judge.service import Service
from corl_judge.settings import Settings

__all__ = ["create_app"]

log = logging.getLogger(__name__)


def create_app(
    settings: Settings, engine: Engine, *, on_death: Callable[[BaseException], None] | None = None
) -> FastAPI:
    """A judge over an engine that is not started yet; `settings.redis` must be set.

    The engine starts with the application, while the probes are answered already. `on_death` is called when it cannot
    go on: the process should then exit. `app.state.service` has every part, for tests.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings, engine, on_death)
        app.state.service = service
        try:
            await service.start()
            yield
        finally:
            await service.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    for routes in (rollouts, scores, jobs, weights, trainer, model, health, compat):
        app.include_router(routes.router)
    if settings.compat == "nemo-gym":
        app.include_router(compat_nemo.router)
    docs.install(app)
    openapi.install(app)
    errors.install(app)
    app.add_exception_handler(RedisError, _redis_away)
    app.add_exception_handler(ClientGone, _client_gone)
    # The last added is the outermost.
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(RequireKey, key=settings.api_key)
    app.add_middleware(errors.LastResort)
    app.add_middleware(RequestLog, member=settings.member)
    return app


class RequestLog:
    """Middleware: gives every request an id, logs how it ended, counts and times it by route."""

    def __init__(self, app: ASGIApp, member: str) -> None:
        self.app = app
        self._member = member

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = (
            given if given.isascii() and given.isprintable() and 0 < len(given) <= 64 else uuid.uuid4().hex[:16]
        )
        started = time.monotonic()
        status = 500

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        with bound(request_id=request_id, member=self._member):
            try:
                await self.app(scope, receive, marked)
            finally:
                self._note(scope, status, time.monotonic() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", "unmatched")
        service: Service | None = getattr(scope["app"].state, "service", None) if "app" in scope else None
        if service is not None:
            service.metrics.requests.labels(path, scope["method"], str(status)).inc()
            service.metrics.latency.labels(path).observe(seconds)
        level = logging.DEBUG if path in PROBES or path == "/metrics" else logging.INFO
        with bound(**scope.get("corl_log", {})):
            log.log(level, "%s %s -> %s in %.3f s", scope["method"], path, status, seconds)


async def _redis_away(request: Request, error: Exception) -> Response:
    log.warning("Redis failed: %s: %s", type(error).__name__, error)
    problem = errors.Unavailable("Redis does not answer; try again", retry_after=2.0, kind="redis")
    return errors.response(problem, request.scope)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
