"""docs/scaling.md: bytes a token are counted, and its examples follow from its formulas."""

from __future__ import annotations

import math
import random
import re
from array import array
from pathlib import Path

from corl_judge.engines.base import Sample
from corl_judge.items import Rollout, SampledItem
from corl_judge.settings import Settings

from corl.histogram import Histogram
from corl.model_size import BYTES, ModelSize, judge_bytes
from corl.wire import Completion, ProblemRollouts, RolloutsResponse, ScoreItem, ScoresRequest, Vote, WeightsTag

PAGE = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
TAG = WeightsTag(incarnation=1, version=18, digest="a" * 64)
ENGLISH = "First we compute the sum of the two numbers and then divide what we get by three so that it is"
PROBLEMS, SAMPLES, TOKENS = 16, 8, 1024
TOKENS_A_STEP = PROBLEMS * SAMPLES * TOKENS


def completions() -> list[Sample]:
    """English of 3.8 characters a token, ids of a large vocabulary, log-probabilities as engines give them."""
    draw, words = random.Random(0), ENGLISH.split()
    found = []
    for _ in range(SAMPLES):
        text = " ".join(draw.choice(words) for _ in range(TOKENS))[: int(3.8 * TOKENS)]
        logprobs = array("f", [-draw.expovariate(3.0) for _ in range(TOKENS)]).tolist()
        found.append(Sample(draw.choices(range(150_000), k=TOKENS), logprobs, text, "stop"))
    return found


def coefficient(row: str) -> float:
    [found] = re.findall(rf"^\| {re.escape(row)} \| (\d+) x S x T", PAGE, re.MULTILINE)
    return float(found)


def near(counted: int, stated: float) -> bool:
    """To the number of digits that the page gives."""
    return abs(counted / (SAMPLES * TOKENS) - stated) <= 0.5


def test_bytes_of_rollouts_on_the_wire() -> None:
    vote = Vote(status="ok", answer="85", key="q:85", keys=["q:85"], count=8, parsed=8, total=8, share=1.0)
    rows = [
        Completion(token_ids=s.token_ids, logprobs=s.logprobs, text=s.text, finish_reason="stop", answer="85")
        for s in completions()
    ]
    problem = ProblemRollouts(problem_id="p", prompt_token_ids=[1] * 200, completions=rows, vote=vote, weights=TAG)
    answer = RolloutsResponse(member="a", run="r", step=1, problems=[problem], weights=TAG)
    assert near(len(answer.model_dump_json()), coefficient("rollouts, judge to trainer (JSON)"))


def test_bytes_of_a_score_request() -> None:
    item = ScoreItem(id="p", problem_id="p", prompt="x" * 600, completions=[s.text for s in completions()])
    request = ScoresRequest(items=[item])
    assert near(len(request.model_dump_json()), coefficient("scores, trainer to each teacher"))


def test_bytes_of_a_result_in_redis() -> None:
    histogram = Histogram.of(["85"] * SAMPLES).to_bytes()
    result = SampledItem(TAG, histogram, [Rollout(sample, "85") for sample in completions()])
    assert near(len(result.to_bytes()), coefficient("results in Redis, kept for 2 hours"))


def test_the_example_of_the_table_follows() -> None:
    def shown(row: str) -> float:
        [found] = re.findall(rf"^\| {re.escape(row)} \| .* \| ([\d.]+) MB \|$", PAGE, re.MULTILINE)
        return float(found)

    for row in (
        "rollouts, judge to trainer (JSON)",
        "scores, trainer to each teacher",
        "results in Redis, kept for 2 hours",
    ):
        assert shown(row) == round(coefficient(row) * TOKENS_A_STEP / 1e6, 1)
    size = ModelSize("3B", 3_085_938_688, 3_085_938_688 * BYTES["bfloat16"], True)
    assert "6.2 GB x R |\n" in PAGE
    assert round(judge_bytes(size, "vllm", {}) / 1e9, 1) == 6.2


def test_the_worked_example_follows() -> None:
    assert f"S x T = {TOKENS_A_STEP:,} tokens and a measured v of 2,500 tokens/s at 43 sequences" in PAGE
    assert math.ceil(PROBLEMS * SAMPLES / 3) == 43
    assert round(TOKENS_A_STEP / 2500) == 52
    assert round(TOKENS_A_STEP / (3 * 2500), 1) == 17.5
    assert round(6.2 * 3 / 1.0, 1) == 18.6
    assert math.ceil(PROBLEMS / 3) == 6
    assert round(12 * TOKENS_A_STEP * 7200 / 60 / 1e6, -1) == 190
    assert 2784 // (2 * PROBLEMS) == 87


def test_settings_have_the_values_that_are_stated() -> None:
    assert Settings.model_fields["max_problems_in_flight"].default == 64
    assert "`judge.max_problems_in_flight` problems (64)" in PAGE
    assert Settings.model_fields["max_open_requests"].default == 4096
    assert Settings.model_fields["result_ttl_s"].default == 7200.0
    for flag, given in re.findall(r"`--([a-z-]+-s)` \((\d+) s\)", PAGE):
        assert Settings.model_fields[flag.replace("-", "_")].default == float(given)
