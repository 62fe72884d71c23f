"""52,000 mutated answers: no exception, no hang, bounded memory, and every key survives the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers.child import Child

DATA = Path(__file__).parent.parent / "data"
BATCH, BATCHES = 4_000, 13
DEADLINE_S = 250.0  # a batch takes some seconds of CPU; a hang takes forever
PEAK_MIB = 300


@pytest.fixture(scope="module")
def seeds() -> list[str]:
    cases = [json.loads(line) for name in ("answers.jsonl", "answers_own.jsonl") for line in (DATA / name).open()]
    texts = [text for case in cases for text in (case.get("a"), case.get("b"), case.get("completion"))]
    return [text for text in texts if isinstance(text, str) and len(text) < 400]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    one = Child(tmp_path_factory.mktemp("fuzz"))
    yield one
    one.stop()


@pytest.mark.parametrize("seed", range(BATCHES))
def test_mutants_raise_nothing_hang_nowhere_and_keep_memory_bounded(seed: int, child: Child, seeds: list[str]) -> None:
    result = child.run({"kind": "fuzz", "seeds": seeds, "count": BATCH, "seed": seed}, DEADLINE_S)
    assert "value" in result, result
    assert result["value"]["failures"] == []
    assert result["value"]["peak_mib"] < PEAK_MIB
    assert list(child.folder.iterdir()) == [], "an answer's text was run: it left a file"
