"""Two nano members trained against real judges: HTTP, Redis, transformers engine."""

from __future__ import annotations

from pathlib import Path

from corl_trainer.member import train_member
from corl_trainer.runlog import read_run

from tests.trainer.stack import cohort, settings


def test_two_members(judges: dict[str, str], weights: Path, tmp_path: Path) -> None:
    of = cohort()
    codes = {}

    def train(member: str) -> None:
        codes[member] = train_member(settings(of, member, tmp_path, judges, "pair", weights=weights))

    train("llama")
    print(codes)
    logs = read_run(tmp_path)
    assert logs["llama"].end["code"] == 0
