from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from corl_judge.engines.transformers import TransformersEngine
from corl_judge.settings import Settings
from corl_trainer.member import train_member
from corl_trainer.runlog import MemberLog, read_member
from corl_trainer.stops import ExitCode

from corl.localredis import LocalRedis
from tests.trainer.fake_judge import FakeJudge, answers
from tests.trainer.stack import EXAMPLE, MODELS, cohort, serving, settings

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture
def own_redis_url() -> Iterator[str]:
    """A Redis for one test: judges of one member on one Redis are replicas, whatever test started them."""
    with LocalRedis() as server:
        yield server.url


@pytest.fixture(scope="session")
def judges(redis_url: str, weights: Path) -> Iterator[dict[str, str]]:
    """Addresses of the two nano members' judges over the transformers engine, shared by all tests (by run name)."""
    with ExitStack() as stack:
        yield {
            member: stack.enter_context(
                serving(
                    Settings(
                        member=member,
                        model=str(MODELS / member),
                        engine="transformers",
                        redis=redis_url,
                        weights=weights,
                        cohort_file=EXAMPLE,
                        vote_max_tokens=8,
                    ),
                    TransformersEngine(str(MODELS / member)),
                )
            )
            for member in ("llama", "qwen")
        }


@dataclass
class Lab:
    """One member, `llama`, trained in this process against scripted judges; its teacher `qwen` has no trainer."""

    root: Path
    llama: FakeJudge
    qwen: FakeJudge
    codes: list[ExitCode] = field(default_factory=list)

    @property
    def urls(self) -> dict[str, str]:
        return {"llama": self.llama.url, "qwen": self.qwen.url}

    def train(self, name: str = "run", *, resume_step: int | None = None, **overrides: Any) -> ExitCode:
        """Two steps without evaluation, unless told otherwise."""
        small: dict[str, Any] = {"training__steps": 2, "problems__heldout": None, "vote__wait_s": 1}
        of = cohort(**(small | overrides))
        return train_member(settings(of, "llama", self.root / name, self.urls, "run", resume_step=resume_step))

    def command(self, cohort_file: Path, name: str = "run", *more: str | Path) -> list[str | Path]:
        """Arguments of a trainer process that does what `train` does."""
        judges = [part for member, url in self.urls.items() for part in ("--judge", f"{member}={url}")]
        return [cohort_file, "--member", "llama", "--run", "run", "--run-dir", self.root / name, *judges, *more]

    def log(self, name: str = "run") -> MemberLog:
        return read_member(self.root / name / "llama")

    def digests(self) -> dict[int, str]:
        """Published digests by version; the same version must not have two."""
        found: dict[int, str] = {}
        for update in self.llama.pushed:
            assert found.setdefault(update.version, update.digest) == update.digest, f"version {update.version} differs"
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with (
        FakeJudge("llama", str(MODELS / "llama"), answers("a")) as llama,
        FakeJudge("qwen", str(MODELS / "qwen"), answers("b"), frozen=True) as qwen,
    ):
        yield Lab(tmp_path, llama, qwen)


@pytest.fixture(scope="session")
def make_lab(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """For tests that compare two runs, each with judges of its own."""
    from contextlib import contextmanager

    @contextmanager
    def make() -> Iterator[Lab]:
        with (
            FakeJudge("llama", str(MODELS / "llama"), answers("a")) as llama,
            FakeJudge("qwen", str(MODELS / "qwen"), answers("b"), frozen=True) as qwen,
        ):
            yield Lab(tmp_path_factory.mktemp("lab"), llama, qwen)

    return make
