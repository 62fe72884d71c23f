"""The audit: math-verify in a process that is killed at a deadline, and the counts of what differs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from corl.answers.audit import AuditError, Referee, audit, sample_pairs
from corl.answers.audit_cli import audit_answers

HANGS = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    if "hang" in line:
        time.sleep(600)
    if "die" in line:
        sys.exit(1)
    print("null" if "odd" in line else "[true, false]" if "skew" in line else "[true, true]", flush=True)
"""


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    """A referee's child that hangs, dies or answers on demand."""
    (tmp_path / "child.py").write_text(HANGS)
    return [sys.executable, str(tmp_path / "child.py")]


def test_a_pair_that_hangs_or_kills_is_stopped_and_the_next_one_is_compared(scripted: list[str]) -> None:
    pairs = [("1", "1.0"), ("hang", "1"), ("die", "1"), ("odd", "1"), ("skew", "1"), ("1", "2"), ("1/2", "0.5")]
    with Referee(0.5, scripted) as referee:
        found = audit(pairs, referee)
    assert (found.pairs, found.agreed, found.stopped, found.unparsed, found.asymmetric) == (7, 2, 2, 1, 1)
    assert [(one.a, one.b, one.ours, one.theirs) for one in found.disagreements] == [("1", "2", False, "same")]


def test_a_process_that_does_not_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="did not start"), Referee(1.0, [sys.executable, "-c", "pass"]):
        pass


def test_pairs_are_of_different_spellings_within_a_group_and_bounded() -> None:
    assert list(sample_pairs([["1", "1", "2"], ["3"], []])) == [("1", "2")]
    group = [str(i) for i in range(20)]
    assert len(list(sample_pairs([group, group], per_group=5))) == 10
    assert list(sample_pairs([group], 5, seed=1)) == list(sample_pairs([group], 5, seed=1))


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(audit_answers)
    return app


def test_the_command_compares_with_the_real_math_verify(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    file = tmp_path / "answers.jsonl"
    file.write_text('{"answers": ["\\\\frac{1}{2}", "0.5"]}\n\n{"answers": ["5 \\\\text{ m}", "5 \\\\text{ cm}"]}\n')
    result = CliRunner().invoke(command(), [str(file), "--seconds", "60"])
    assert result.exit_code == 0, result.output
    assert "2 pairs: 1 of 2 decided by math-verify agree" in result.output
    assert "ours: different, math-verify: same" in result.output


def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, scripted: list[str]) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"answers": ["1"]}\n{"answer": "1"}\n')
    pytest.importorskip("math_verify")
    result = CliRunner().invoke(command(), [str(file)])
    assert isinstance(result.exception, AuditError)
    assert f"{file}:2: expected" in str(result.exception)
