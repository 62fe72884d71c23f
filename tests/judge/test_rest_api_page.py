"""docs/rest-api.md names every route, error and limit of a judge, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from corl_judge.settings import Settings

from tests.judge.harness import Judges

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rest-api.md").read_text(encoding="utf-8")
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "services/corl_judge").rglob("*.py"))
OF_HTTP = {"method-not-allowed"}
"""Kinds that Starlette's own refusals get from their status."""


async def test_every_route_has_a_section_and_no_other_has(judges: Judges) -> None:
    judge = await judges.start()
    api = await judge.get("/openapi.json")
    routes = {f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods}
    assert set(re.findall(r"^### `([A-Z]+ /\S+)`$", PAGE, re.MULTILINE)) == routes


async def test_every_documented_status_is_in_the_table_of_errors(judges: Judges) -> None:
    judge = await judges.start()
    api = await judge.get("/openapi.json")
    answers = [operation["responses"] for methods in api["paths"].values() for operation in methods.values()]
    refusals = {int(status) for responses in answers for status in responses if int(status) >= 400}
    named = {int(status) for status in re.findall(r"^\| (\d{3}) \| `urn:corl:", PAGE, re.MULTILINE)}
    assert refusals <= named
    assert named - refusals == {405, 500}


def test_every_kind_of_error_is_in_the_table_and_no_other_is() -> None:
    given = set(re.findall(r'kind="([a-z-]+)",?\s*\)', SOURCE))
    classes = set(re.findall(r'status, kind, title = \d+, "([a-z-]+)"', SOURCE))
    # `conflict` is the base's own: every conflict that is raised says a closer one.
    assert "conflict" in classes
    kinds = (given | classes | {"internal"} | OF_HTTP) - {"conflict"}
    assert set(re.findall(r"`urn:corl:([a-z-]+)`", PAGE)) == kinds


def test_limits_are_settings_with_these_defaults() -> None:
    table = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `--([a-z-]+)` \| (\S+) \|", table, re.MULTILINE)
    assert len(rows) == 8
    for flag, default in rows:
        assert str(Settings.model_fields[flag.replace("-", "_")].default) == default, flag


def test_flags_that_the_page_names_exist() -> None:
    flags = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", PAGE)}
    assert flags <= set(Settings.model_fields)
