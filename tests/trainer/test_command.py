"""The command line, without training anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from corl_trainer.main import app
from typer.testing import CliRunner

from tests.trainer.stack import EXAMPLE, write_cohort


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_help_says_how_to_use_several_processes_and_what_the_exit_codes_mean() -> None:
    code, said = run("--help")
    assert code == 0
    for part in ("--judge", "MEMBER=URL", "--resume-step", "torchrun", "Exit codes", "CORL_API_KEY"):
        assert part in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--member", "nobody"], "--member 'nobody' is not in the cohort"),
        (["--member", "llama"], "the address of judge 'llama' is not known"),
        (["--member", "llama", "--judge", "llama"], "write it as MEMBER=URL"),
        (["--member", "llama", "--reward", "praise"], "reward"),
    ],
)
def test_wrong_input_is_said_in_a_line_with_exit_code_2(arguments: list[str], message: str) -> None:
    code, said = run(EXAMPLE, "--run", "r", *arguments)
    assert code == 2
    assert message in said
    assert "Traceback" not in said


def test_a_wrong_training_field_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    file = write_cohort(tmp_path / "cohort.yaml", training__learning_rat=1)
    judges = [part for name in ("llama", "qwen") for part in ("--judge", f"{name}=http://127.0.0.1:1")]
    code, said = run(file, "--member", "llama", "--run", "r", "--run-dir", tmp_path / "run", *judges)
    assert code == 2
    assert "did you mean 'learning_rate'" in said
    assert not (tmp_path / "run").exists()
