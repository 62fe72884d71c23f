"""Judges on the session's Redis, each test with members of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.judge.harness import Judges, judges_of


@pytest.fixture
async def judges(redis_url: str) -> AsyncIterator[Judges]:
    async with judges_of(redis_url) as started:
        yield started
