"""The judges of `tests/judge`, and a script whose votes are right three times of four."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.judge.harness import Judges, judges_of


@pytest.fixture
async def judges(redis_url: str) -> AsyncIterator[Judges]:
    async with judges_of(redis_url) as started:
        yield started


def sums(prompt: str, n: int, seed: int) -> list[str]:
    """Adds the numbers of the prompt; splits evenly, so without a label, where the prompt says "split"."""
    total = sum(int(word) for word in prompt.split() if word.isdigit())
    if "split" in prompt:
        return [f"\\boxed{{{total + i % 2}}}" for i in range(n)]
    return [f"It is \\boxed{{{total + (i % 4 == 3)}}}." for i in range(n)]
