"""`corl score` against a real judge: rewards and votes out, going on after a stop, explanations, what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from corl_judge.engines.base import EngineError

from corl.cli import run
from corl.explain import reason
from corl.wire import Policy, Vote
from tests.adapters.conftest import sums
from tests.judge.harness import Judges, judges_of
from tests.scripted import ScriptedEngine

ROWS: list[dict[str, Any]] = [
    {"prompt": "1 + 2", "completions": ["\\boxed{3}", "\\boxed{4}", "none"], "id": "first"},
    {"prompt": "split 1 + 2", "completions": ["\\boxed{3}"]},
    {"prompt": [{"role": "user", "content": "3 + 4"}], "completion": [{"role": "assistant", "content": "\\boxed{7}"}]},
]


@pytest.fixture
async def judges(redis_url: str) -> AsyncIterator[Judges]:
    async with judges_of(redis_url) as started:
        yield started


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def corl(*arguments: str | Path) -> int:
    return await asyncio.to_thread(run, ["score", *map(str, arguments)])


async def test_rewards_and_votes_of_every_row(judges: Judges, tmp_path: Path) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    output = tmp_path / "out.jsonl"
    assert await corl(write(tmp_path / "in.jsonl", ROWS), "--judge", judge.url, "-o", output) == 0
    first, second, third = read(output)
    assert (first["line"], first["id"], first["status"]) == (1, "first", "scored")
    assert (first["rewards"], first["answers"]) == ([1.0, 0.0, 0.0], ["3", "4", None])
    assert (first["vote"]["answer"], first["vote"]["count"], first["vote"]["total"]) == ("3", 6, 8)
    assert (second["status"], second["rewards"], second["vote"]["status"]) == ("unlabeled", None, "tie")
    assert third["rewards"] == [1.0]


async def test_standard_output(judges: Judges, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    assert await corl(write(tmp_path / "in.jsonl", ROWS), "--judge", judge.url) == 0
    captured = capfd.readouterr()
    assert [json.loads(line)["line"] for line in captured.out.splitlines()] == [1, 2, 3]
    assert "2 scored, 1 without a label, 0 failed" in captured.err


async def test_a_run_that_was_killed_goes_on(judges: Judges, tmp_path: Path) -> None:
    engine = ScriptedEngine(sums)
    judge = await judges.start(engine)
    rows = [{"prompt": f"1 + {i}", "completions": [f"\\boxed{{{i + 1}}}"]} for i in range(12)]
    given, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    engine.fail = lambda text: EngineError("later") if any(f"+ {i}" in text for i in range(6, 12)) else None
    command = [sys.executable, "-m", "corl", "score", given, "--judge", judge.url, "-o", output, "--batch", "2"]
    process = await asyncio.create_subprocess_exec(*map(str, command), env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not output.exists() or output.read_bytes().count(b"\n") < 4:
        assert process.returncode is None
        await asyncio.sleep(0.01)
    process.kill()
    await process.wait()
    kept = output.read_bytes()
    output.write_bytes(kept + b'{"key": "torn')
    engine.fail = None
    assert await corl(given, "--judge", judge.url, "-o", output) == 0
    assert output.read_bytes().startswith(kept)
    assert [row["line"] for row in read(output)] == list(range(1, 13))
    assert all(row["rewards"] == [1.0] for row in read(output))
    calls = len(engine.calls)
    assert await corl(given, "--judge", judge.url, "-o", output) == 0
    assert len(engine.calls) == calls


async def test_a_problem_that_failed_is_no_row_and_is_tried_again(
    judges: Judges, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(sums, fail=lambda text: EngineError("out of memory") if "3" in text else None)
    judge = await judges.start(engine)
    given, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    assert await corl(given, "--judge", judge.url, "-o", output) == 1
    assert [row["line"] for row in read(output)] == [1, 2]
    assert "in.jsonl:3: engine: " in capfd.readouterr().err
    engine.fail = None
    assert await corl(given, "--judge", judge.url, "-o", output) == 0
    assert [row["line"] for row in read(output)] == [1, 2, 3]


async def test_explanations(judges: Judges, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    answers = ["\\boxed{1/2}", "\\boxed{0.5}", "\\boxed{3}", "no idea"]
    judge = await judges.start(ScriptedEngine(lambda _p, n, _s: [answers[i % 4] for i in range(n)]))
    rows = [{"prompt": "half of one", "completions": ["\\boxed{\\frac12}", "\\boxed{3}", "?"], "problem_id": "half"}]
    assert await corl(write(tmp_path / "in.jsonl", rows), "--judge", judge.url, "--explain") == 0
    out = capfd.readouterr().out
    assert "line 1, problem half" in out
    assert "vote ok: 0.5 has 4 of 6 answers, a share of 0.67; next is 3 with 2" in out
    assert "=    4  1/2 x2, 0.5 x2" in out
    assert "2  3 x2" in out
    assert "2  (no answer found)" in out
    assert "completion 1: 3 -> 0" in out
    assert "completion 2: no answer -> 0" in out
    assert "completion 0: \\frac12 -> 1" in out


@pytest.mark.parametrize(
    ("vote", "policy", "said"),
    [
        (Vote(status="none", total=8), Policy(), "none of 8 completions holds an answer"),
        (Vote(status="none"), Policy(), "older than asked for"),
        (Vote(status="weak", answer="4", count=3, parsed=8, total=8, share=0.375), Policy(threshold=0.5), "threshold"),
        (Vote(status="weak", answer="4", count=1, parsed=1, total=8, share=1.0), Policy(), "min_parsed asks for 2"),
    ],
)
def test_reasons(vote: Vote, policy: Policy, said: str) -> None:
    assert said in reason(vote, policy)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no rows"),
        ("{", "in.jsonl:1: row: Invalid JSON"),
        ('{"completions": ["x"]}', "in.jsonl:1: prompt: Field required"),
        ('\n{"prompt": "a"}', "in.jsonl:2: completions: missing"),
        ('{"prompt": "a", "completions": [3]}', "in.jsonl:1: completions.0: expected text"),
        ('{"prompt": "a", "completions": ["x"], "task": "sums"}', "in.jsonl:1: task: "),
    ],
)
async def test_rows_that_are_wrong_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    assert await corl(tmp_path / "in.jsonl", "--judge", "http://127.0.0.1:9") == 2
    assert said in capfd.readouterr().err


async def test_an_output_of_something_else_is_left_alone(
    judges: Judges, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    judge = await judges.start(ScriptedEngine(sums))
    given, output = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    output.write_text("a diary\n")
    assert await corl(given, "--judge", judge.url, "-o", output) == 2
    assert output.read_text() == "a diary\n"
    output.unlink()
    assert await corl(given, "--judge", judge.url, "-o", output) == 0
    before = output.read_bytes()
    assert await corl(given, "--judge", judge.url, "-o", output, "--samples", "4") == 2
    assert "with another policy: give another --output" in capfd.readouterr().err
    assert output.read_bytes() == before
