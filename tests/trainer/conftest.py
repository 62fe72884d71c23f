from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from corl_judge.engines.transformers import TransformersEngine
from corl_judge.settings import Settings

from tests.trainer.stack import EXAMPLE, MODELS, serving

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


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
