"""docs/rest-api.md says what the models of the wire say, and its examples are such bodies."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from corl import wire
from corl.wire_reference import TABLES, reference, rewritten

PAGE = (Path(__file__).parents[1] / "docs" / "rest-api.md").read_text(encoding="utf-8")

EXAMPLES: dict[str, list[type[BaseModel]]] = {
    "POST /v1/rollouts": [wire.RolloutsRequest, wire.RolloutsResponse],
    "POST /v1/scores": [wire.ScoresRequest, wire.ScoresResponse, wire.ScoresRequest, wire.ScoresResponse],
    "POST /v1/jobs": [wire.JobRequest, wire.JobStatus],
    "GET /v1/jobs/{job_id}": [wire.JobStatus],
    "PUT /v1/trainer": [wire.TrainerUpdate, wire.TrainerLease],
    "PUT /v1/weights": [wire.WeightsUpdate],
    "GET /v1/weights": [wire.WeightsStatus],
    "DELETE /v1/votes": [wire.VotesDropped],
    "GET /v1/model": [wire.ModelInfo],
}


def test_the_page_is_up_to_date() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m corl.wire_reference docs/rest-api.md"


def test_every_model_of_the_wire_has_a_table() -> None:
    models = {getattr(wire, name) for name in wire.__all__}
    known = {model for model in models if inspect.isclass(model) and issubclass(model, BaseModel)}
    assert known == set(TABLES)


def test_links_of_the_tables_lead_somewhere() -> None:
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", reference(), re.MULTILINE)}
    links = set(re.findall(r"\]\(#(\w+)\)", PAGE))
    assert links
    assert links <= headings | {"metrics"}


def test_null_and_bounds_are_said() -> None:
    rows = reference()
    assert "| `rewards` | list of number or null | one a completion; null unless `scored` |" in rows
    assert "| `n` | integer, >= 1 | required | completions per problem |" in rows


@pytest.mark.parametrize("route", EXAMPLES)
def test_examples_are_such_bodies(route: str) -> None:
    section = PAGE.split(f"### `{route}`\n")[1].split("\n### ")[0]
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
    assert len(blocks) == len(EXAMPLES[route])
    for model, block in zip(EXAMPLES[route], blocks, strict=True):
        strict = issubclass(model, wire.Request)
        model.model_validate_json(json.dumps(block), strict=strict)
        assert set(block) <= set(model.model_fields)


def test_error_examples_are_error_bodies() -> None:
    section = PAGE.split("\n## Errors\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert [wire.ErrorBody.model_validate_json(block).status for block in blocks] == [401, 422]
