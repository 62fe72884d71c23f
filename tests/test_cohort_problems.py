"""Problem files and data sets: read whole, lined up by id, with training answers only where they may be."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corl.cohort import Cohort, CohortError, HeldOut, load_cohort, load_heldout, load_problems

ROWS = [
    {"problem_id": "p1", "problem": "1+1=", "answer": "two-secret", "level": "Level 1"},
    {"problem_id": "p2", "problem": "2+2=", "answer": "four-secret", "level": "Level 3"},
    {"problem_id": "p3", "problem": "3+3=", "answer": "six-secret", "level": "Level 5"},
]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def cohort(folder: Path, problems: str, **settings: Any) -> Cohort:
    (folder / "cohort.yaml").write_text(f"members:\n  a: {{model: m}}\n  b: {{model: m}}\nproblems: {problems}\n")
    return load_cohort(folder / "cohort.yaml", **settings)


def refused(folder: Path, problems: str, **settings: Any) -> str:
    with pytest.raises(CohortError) as caught:
        load_problems(cohort(folder, problems, **settings))
    return str(caught.value)


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["peer", "self", "collective", "entropy", "certainty"])
def test_training_answers_are_absent_unless_the_source_is_truth(tmp_path: Path, reward: Any) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    loaded = cohort(tmp_path, "{train: {path: train.jsonl}}", reward=reward)
    problems = load_problems(loaded)
    assert problems.ids == ["p1", "p2", "p3"]
    with pytest.raises(CohortError, match="only reward source truth"):
        problems.answer("p1")
    assert b"1+1=" in pickle.dumps(problems)
    assert b"secret" not in pickle.dumps(problems)


@pytest.mark.parametrize(("reward", "held"), [("peer", 0), ("truth", 3)])
def test_no_answer_is_left_anywhere_in_the_process(tmp_path: Path, reward: Any, held: int) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    cohort(tmp_path, "{train: {path: train.jsonl}}")
    script = """
import gc, sys
from corl.cohort import load_cohort, load_problems
_, file, reward, mark = sys.argv
cohort = load_cohort(file, reward=reward)
problems = load_problems(cohort)
gc.collect()
reached, ahead = {}, gc.get_objects()  # which leaves out dictionaries of texts: they are found from what holds them
while ahead:
    reached |= {id(thing): thing for thing in ahead}
    below = {id(thing): thing for thing in gc.get_referents(*ahead)}
    ahead = [thing for key, thing in below.items() if key not in reached]
print(len(problems), sum(isinstance(x, str) and mark in x and x != mark for x in reached.values()))
"""
    run = [sys.executable, "-c", script, str(tmp_path / "cohort.yaml"), reward, "-secret"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.split() == ["3", str(held)]


def test_truth_holds_them(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    problems = load_problems(cohort(tmp_path, "{train: {path: train.jsonl}}", reward="truth"))
    assert problems.answer("p2") == "four-secret"
    with pytest.raises(CohortError, match="no problem 'p9'"):
        problems.answer("p9")


def test_training_files_may_have_no_answers_at_all(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", [{"problem_id": 1, "problem": "1+1="}])
    assert load_problems(cohort(tmp_path, "{train: {path: train.jsonl}}")).ids == ["1"]
    assert "train.jsonl:1: problems.train: no column 'answer'" in refused(
        tmp_path, "{train: {path: train.jsonl}}", reward="truth"
    )
    assert "reward source truth needs answers" in refused(
        tmp_path, "{train: {path: train.jsonl, columns: {answer: null}}}", reward="truth"
    )


def test_heldout_answers_are_kept_apart(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS[:2])
    lines(tmp_path / "heldout.jsonl", ROWS[2:])
    loaded = cohort(tmp_path, "{train: {path: train.jsonl}, heldout: {path: heldout.jsonl}}")
    assert load_heldout(loaded) == [HeldOut("p3", "3+3=", "six-secret")]
    assert load_problems(loaded).ids == ["p1", "p2"]
    assert load_heldout(cohort(tmp_path, "{train: {path: train.jsonl}}")) == []


def test_heldout_problems_need_answers(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / "heldout.jsonl", [{"problem_id": "h", "problem": "1+1=", "answer": ""}])
    loaded = cohort(tmp_path, "{train: {path: train.jsonl}, heldout: {path: heldout.jsonl}}")
    with pytest.raises(CohortError, match=r"heldout\.jsonl:1: problems\.heldout: column 'answer' must hold .* got ''"):
        load_heldout(loaded)


@pytest.mark.parametrize("spelling", ["0.50", "1e3", "12345678901234567890123", "-0.0", "007"])
def test_numbers_keep_their_spelling(tmp_path: Path, spelling: str) -> None:
    raw = spelling if spelling != "007" else '"007"'
    (tmp_path / "train.jsonl").write_text(f'{{"problem_id": 5, "problem": "?", "answer": {raw}}}\n')
    assert load_problems(cohort(tmp_path, "{train: {path: train.jsonl}}", reward="truth")).answer("5") == spelling


def test_the_answer_of_a_worked_solution(tmp_path: Path) -> None:
    solutions = ["So $x = \\boxed{\\frac{1}{2}}$.", "2+3 = 5\n#### 5", "No answer here"]
    lines(tmp_path / "t.jsonl", [{"problem": "?", "solution": text} for text in solutions[:2]])
    source = "{train: {path: t.jsonl, columns: {problem_id: null, answer: solution, extract_answer: true}}}"
    problems = load_problems(cohort(tmp_path, source, reward="truth"))
    assert [problems.answer(key) for key in problems.ids] == ["\\frac{1}{2}", "5"]
    lines(tmp_path / "t.jsonl", [{"problem": "?", "solution": text} for text in solutions])
    assert "t.jsonl:3: problems.train: column 'solution': no answer in the solution" in refused(
        tmp_path, source, reward="truth"
    )


# Columns, filters, views -------------------------------------------------------------------------------------------


def test_columns_filter_and_limit(tmp_path: Path) -> None:
    rows = [{"unique_id": f"t/{n}", "question": f"q{n}", "level": n % 5 + 1} for n in range(20)]
    lines(tmp_path / "math.jsonl", rows)
    columns = "columns: {problem_id: unique_id, problem: question}"
    problems = load_problems(
        cohort(tmp_path, f"{{train: {{path: math.jsonl, {columns}, where: {{level: [3, '4', 5]}}}}}}")
    )
    assert len(problems) == 12
    assert problems.text("t/2") == "q2"
    source = f"{{train: {{path: math.jsonl, {columns}, where: {{level: 5}}, limit: 2}}}}"
    assert load_problems(cohort(tmp_path, source)).ids == ["t/4", "t/9"]
    assert "no column 'levle', which problems.train.where filters by; did you mean 'level'?" in refused(
        tmp_path, f"{{train: {{path: math.jsonl, {columns}, where: {{levle: 5}}}}}}"
    )
    assert "holds no problem with {'level': 9}" in refused(
        tmp_path, f"{{train: {{path: math.jsonl, {columns}, where: {{level: 9}}}}}}"
    )


def test_numbered_rows_keep_their_number_under_a_filter(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    source = "{path: train.jsonl, columns: {problem_id: null}, where: {level: [Level 3, Level 5]}}"
    assert load_problems(cohort(tmp_path, f"{{train: {source}}}")).ids == ["1", "2"]


def test_views_by_id(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / "view.jsonl", [{**row, "problem": f"Say {row['problem']}"} for row in reversed(ROWS)])
    source = "{train: {path: train.jsonl}, views: {rephrased: {path: view.jsonl}}}"
    problems = load_problems(cohort(tmp_path, source))
    assert [problems.text(key) for key in problems.ids] == ["1+1=", "2+2=", "3+3="]
    assert [problems.text(key, "rephrased") for key in problems.ids] == ["Say 1+1=", "Say 2+2=", "Say 3+3="]
    with pytest.raises(CohortError, match="no view 'x'; there are original, rephrased"):
        problems.text("p1", "x")
    with pytest.raises(CohortError, match="no problem 'p9' in view 'original'"):
        problems.text("p9")


def test_views_that_do_not_line_up(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / "view.jsonl", ROWS[1:])
    source = "{train: {path: train.jsonl}, views: {rephrased: {path: view.jsonl}}}"
    assert "view.jsonl: problems.views.rephrased: lacks 'p1'" in refused(tmp_path, source)
    lines(tmp_path / "view.jsonl", [*ROWS, {"problem_id": "p4", "problem": "4+4="}])
    assert "problems.views.rephrased: has but problems.train lacks 'p4'" in refused(tmp_path, source)
    part = source.replace("train.jsonl", "train.jsonl, limit: 2")
    assert load_problems(cohort(tmp_path, part)).ids == ["p1", "p2"]


def test_a_choice_problems_own_options(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"problem_id": "1", "problem": "?", "choices": ["red", "green"]},
        {"problem_id": "2", "problem": "?", "choices": {"A": "x", "B": "y"}},
    ]
    lines(tmp_path / "train.jsonl", rows)
    source = "{task: choice, train: {path: train.jsonl, columns: {options: choices}}}"
    problems = load_problems(cohort(tmp_path, source))
    assert problems.options("1") == ["red", "green"]
    assert problems.options("2") == {"A": "x", "B": "y"}
    lines(tmp_path / "train.jsonl", [{**rows[0], "choices": "red, green"}])
    assert "train.jsonl:1: problems.train: column 'choices' must be a list" in refused(tmp_path, source)


# Wrong files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ('{"problem_id": "p1", "problem": "x"}', ":2: problems.train: problem id 'p1' was given in line 1 already"),
        ('{"problem_id": 7.5, "problem": ""}', ":2: problems.train: column 'problem' must hold the problem's text"),
        ('{"problem_id": "p2", "problem": null}', ":2: problems.train: column 'problem' must hold the problem's text"),
        ('{"problem_id": "", "problem": "x"}', ":2: problems.train: column 'problem_id' must hold an id"),
        ('{"problem_id": true, "problem": "x"}', ":2: problems.train: column 'problem_id' must hold an id"),
        (
            '{"id": "p2", "problem": "x"}',
            ":2: problems.train: no column 'problem_id'; there are id, problem: name it in ",
        ),
        (
            '{"problem_id": "p2", "problme": "x"}',
            ":2: problems.train: no column 'problem'; there are problem_id, problme: name it",
        ),
        ('{"problem_id": "p2", "problem": "x"', ":2: problems.train: not JSON: "),
        ('["p2", "x"]', ":2: problems.train: must be a JSON object; got "),
        ("[" * 100_000, ":2: problems.train: not JSON: "),
    ],
)
def test_a_wrong_row_names_file_line_column_and_value(tmp_path: Path, second: str, says: str) -> None:
    (tmp_path / "train.jsonl").write_text(f'{{"problem_id": "p1", "problem": "1+1="}}\n{second}\n')
    assert f"{tmp_path}/train.jsonl{says}" in refused(tmp_path, "{train: {path: train.jsonl}}")


def test_an_empty_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("\n\n")
    assert "train.jsonl: problems.train: holds no problem" in refused(tmp_path, "{train: {path: train.jsonl}}")
    (tmp_path / "train.jsonl").write_bytes(b'{"problem_id": "\xff"}')
    assert "train.jsonl: problems.train: cannot be read" in refused(tmp_path, "{train: {path: train.jsonl}}")


def test_blank_lines_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b'\xef\xbb\xbf{"problem_id": "p1", "problem": "x"}\r\n\r\n')
    assert load_problems(cohort(tmp_path, "{train: {path: train.jsonl}}")).text("p1") == "x"


texts = st.text(min_size=1).filter(lambda text: text.strip())


@given(st.dictionaries(st.text(min_size=1, max_size=20), texts, min_size=1, max_size=20))
def test_any_text_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("rows")
    lines(folder / "train.jsonl", [{"problem_id": key, "problem": text} for key, text in rows.items()])
    problems = load_problems(cohort(folder, "{train: {path: train.jsonl}}"))
    assert problems.ids == list(rows)
    assert [problems.text(key) for key in problems.ids] == list(rows.values())


# Hugging Face datasets, without a network --------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.mark.usefixtures("offline")
def test_a_dataset_saved_to_disk(tmp_path: Path) -> None:
    import datasets

    data = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    )
    data.save_to_disk(str(tmp_path / "saved"))
    source = "{train: {dataset: saved, where: {level: [Level 3, Level 5]}}, heldout: {dataset: ./saved, split: test}}"
    loaded = cohort(tmp_path, source)
    assert load_problems(loaded).ids == ["p2", "p3"]
    assert load_heldout(loaded) == [HeldOut("p1", "1+1=", "two-secret")]
    gc.collect()
    assert b"secret" not in pickle.dumps(load_problems(loaded))
    assert "no split 'tset'; did you mean 'test'?" in refused(tmp_path, "{train: {dataset: saved, split: tset}}")


@pytest.mark.usefixtures("offline")
def test_a_folder_of_files_and_single_files(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list(ROWS)
    (tmp_path / "folder").mkdir()
    data.to_parquet(str(tmp_path / "folder" / "train-00000-of-00001.parquet"))
    data.to_csv(str(tmp_path / "rows.csv"))
    for source in ("dataset: folder", "path: folder/train-00000-of-00001.parquet", "path: rows.csv"):
        problems = load_problems(cohort(tmp_path, f"{{train: {{{source}}}}}", reward="truth"))
        assert [problems.answer(key) for key in problems.ids] == ["two-secret", "four-secret", "six-secret"], source
    columns = "columns: {problem_id: idx}"
    assert "row 0: no column 'idx'; there are " in refused(tmp_path, f"{{train: {{path: rows.csv, {columns}}}}}")
    (tmp_path / "rows.xml").write_text("<a/>")
    assert "ends in '.xml'; what is read: .jsonl, .ndjson, .csv, .json, .parquet" in refused(
        tmp_path, "{train: {path: rows.xml}}"
    )


@pytest.mark.usefixtures("offline")
def test_a_dataset_that_is_nowhere(tmp_path: Path) -> None:
    assert "nowhere/at-all: problems.train: cannot be loaded: " in refused(
        tmp_path, "{train: {dataset: nowhere/at-all}}"
    )


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "needs the package datasets: pip install 'corl[trainer]'" in refused(tmp_path, "{train: {dataset: org/x}}")
