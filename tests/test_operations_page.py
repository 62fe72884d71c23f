"""docs/operations.md and deploy/*.yml name what there is, and all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from corl_judge.engines.base import DeviceMemory, Usage
from corl_judge.metrics import Metrics
from corl_judge.settings import Settings
from corl_trainer.stops import ExitCode
from prometheus_client.metrics import MetricWrapperBase

from corl.size_reference import rewritten

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SUFFIX = {"counter": "_total"}


class EverythingMetered:
    """An engine that says all that an engine may say of itself."""

    def usage(self) -> Usage:
        return Usage()

    def device_memory(self) -> DeviceMemory:
        return DeviceMemory(allocated=1, reserved=2)


def metrics() -> dict[str, Any]:
    """Families by the name that is used in queries."""
    made = Metrics()
    made.observe(EverythingMetered())  # type: ignore[arg-type]
    families = {family.name + SUFFIX.get(family.type, ""): family for family in made.registry.collect()}
    return {name: family for name, family in families.items() if not name.endswith("_created")}


def test_the_sizing_table_is_up_to_date() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m corl.size_reference docs/operations.md"


def test_every_metric_has_a_row_and_no_other_has() -> None:
    rows = re.findall(r"^\| `(corl_\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(metrics())


def test_metrics_that_are_named_elsewhere_exist() -> None:
    alerts = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\bcorl_\w+", PAGE + alerts)) <= set(metrics())


def test_flags_exist_with_the_defaults_that_the_page_gives() -> None:
    judge = {name.replace("_", "-"): field.default for name, field in Settings.model_fields.items()}
    others = {"member", "run", "redis", "reward", "resume", "resume-step", "scale", "no-deps", "no-recreate"}
    assert set(re.findall(r"`[^`\n]*?--([a-z-]+)", PAGE)) <= {*judge, *others}
    seconds = re.findall(r"`--([a-z-]+-s)` \((\d+) s\)", PAGE)
    assert len(seconds) >= 4
    for flag, given in seconds:
        assert float(given) == judge[flag], flag
    assert judge["max-problems-in-flight"] == 64
    assert "`--max-problems-in-flight` (64)" in PAGE


def test_exit_codes_of_a_trainer_are_all_there() -> None:
    [row] = re.findall(r"^\| trainer, one a member .*$", PAGE, re.MULTILINE)
    assert re.findall(r"(\d) [a-z]", row.split("|")[-2]) == [str(int(code)) for code in ExitCode]


def test_prometheus_scrapes_the_judges_of_the_compose_file() -> None:
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    [job] = scrape["scrape_configs"]
    [targets] = job["dns_sd_configs"]
    judges = {name: service for name, service in compose["services"].items() if name.startswith("judge-")}
    assert targets["names"] == list(judges)
    for service in judges.values():
        [published] = service["ports"]
        assert published.endswith(f":{targets['port']}")
    assert f"--network {compose['name']}_default" in (ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8")
    assert scrape["rule_files"] == ["alerts.yml"]


def test_alerts_use_labels_that_the_metrics_have() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    declared = [metric for metric in vars(Metrics()).values() if isinstance(metric, MetricWrapperBase)]
    labels = {f"{metric._name}{SUFFIX.get(metric._type, '')}": set(metric._labelnames) for metric in declared}
    for rule in rules:
        assert rule["annotations"]["summary"]
        for name, chosen in re.findall(r"(corl_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)!?=", chosen)) <= labels[name], rule["alert"]
