"""docs/cohort.md says what the models say."""

from __future__ import annotations

from pathlib import Path

import pytest

from corl.cohort import Cohort
from corl.cohort_file import load_cohort
from corl.cohort_reference import reference, rewritten

PAGE = Path(__file__).parents[1] / "docs" / "cohort.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page) == page, "run: python -m corl.cohort_reference docs/cohort.md"


def test_every_field_has_a_row() -> None:
    rows = reference()
    for name, field in Cohort.model_fields.items():
        assert f"| `{name}` |" in rows
        assert field.description is None or field.description.replace("|", "\\|") in rows
    assert "### `members.NAME.devices`" in rows
    assert "| `threshold` | number, >= 0, <= 1 | `0.0` |" in rows


def test_a_page_without_a_place_for_them() -> None:
    with pytest.raises(ValueError, match="the page needs the lines"):
        rewritten("# nothing\n")


def test_the_examples_of_the_page_are_cohorts(tmp_path: Path) -> None:
    example = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    row = PAGE.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    for name in ("train.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text(row)
    (tmp_path / "cohort.yaml").write_text(example)
    assert load_cohort(tmp_path / "cohort.yaml").teachers("a") == ["b"]
