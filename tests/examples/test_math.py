"""The paper's cohorts are files that `corl check` accepts, with nothing downloaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from corl.cli import main

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "math").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_file_is_checked(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    copy = tmp_path / file.name
    shutil.copy(file, copy)
    if file.stem == "rephrased":  # what rephrase.py writes
        rows = [{"problem_id": "0", "problem": "How much is two and two?"}]
        (tmp_path / "problems.rephrased.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("sys.argv", ["corl", "check", str(copy)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    assert f"{copy}: ok" in said.out
    for what in ("50 steps of 16 problems x 8 completions", "judge 0, trainer 0", "taken from the hub at start"):
        assert what in said.out, said.out
