"""Both clients through one face, so that every test holds for both."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from corl.client import AsyncJudgeClient, Backoff, JudgeClient

QUICK = Backoff(base_s=0.01, cap_s=0.02)
PLENTY_S = 60.0


class Face:
    """Calls a client's method by name and waits for it; asyncio's each in a new event loop."""

    def __init__(self, kind: Literal["sync", "async"]) -> None:
        self.kind = kind

    def __call__(self, url: str, api_key: str | None = "the-key", **options: Any) -> Any:
        options = {"backoff": QUICK, "timeout": PLENTY_S, **options}
        if self.kind == "sync":
            return JudgeClient(url, api_key, **options)
        return Blocking(AsyncJudgeClient(url, api_key, **options))


class Blocking:
    def __init__(self, client: AsyncJudgeClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        return lambda *args, **kwargs: asyncio.run(call(*args, **kwargs))


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)
