"""NeMo-Gym's formats: the problem and the answer in a verify request, and metrics over many verify responses.

Sources: nemo_gym/base_resources_server.py, failure_kinds.py and rollout_correlation.py of NVIDIA-NeMo/Gym.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corl.adapters.texts import prompt_of
from corl.wire import Message
from corl_judge.compat.coalesce import Judged
from corl_judge.compat.wire import VerifyRequest
from corl_judge.errors import Invalid

__all__ = ["aggregate", "answer_text", "problem", "verified"]

TASK = "_ng_task_index"
LARGEST = 1e100
"""Of numbers that statistics are made of; NaN and what would overflow are no measurements."""
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "median": statistics.median,
    "std": statistics.pstdev,
}


def problem(params: Mapping[str, Any]) -> str | list[Message]:
    """The input of the request to the model: text or messages, with `instructions` before them. Raises Invalid."""
    given = params.get("input")
    instructions = params.get("instructions")
    field = "responses_create_params.input"
    if not isinstance(given, str | list) or not given:
        raise Invalid.field(field, "is missing: expected text or a list of messages", given)
    if isinstance(given, list):
        given = [
            {"role": item.get("role"), "content": item.get("content")}
            for item in given
            if isinstance(item, dict) and item.get("type", "message") == "message"
        ]
    try:
        found = prompt_of(given, field)
    except ValueError as error:
        raise Invalid.field(field, str(error).removeprefix(f"{field}: ")) from error
    if not isinstance(instructions, str) or not instructions:
        return found
    messages = [Message(role="user", content=found)] if isinstance(found, str) else found
    return [Message(role="system", content=instructions), *messages]


def answer_text(response: Mapping[str, Any]) -> str:
    """The text of the last message in the response's output; empty if it ended without one."""
    output = response.get("output")
    if not isinstance(output, list):
        raise Invalid.field("response.output", "is missing: expected the items of an OpenAI response", output)
    for item in reversed(output):
        if isinstance(item, dict) and item.get("type") == "message":
            parts = item.get("content")
            if isinstance(parts, str):
                return parts
            texts = [part.get("text") for part in parts or [] if isinstance(part, dict)]
            return "".join(text for text in texts if isinstance(text, str))
    return ""


def verified(request: VerifyRequest, verdict: Judged) -> dict[str, Any]:
    """The request with its reward. A sample without a label is masked, so that its 0.0 counts nowhere."""
    vote = verdict.vote
    missing = verdict.reward is None
    return {
        **request.model_dump(),
        "reward": 0.0 if verdict.reward is None else verdict.reward,
        "mask_sample": missing,
        "failure_kind": None,
        "failure_reason": f"no label: the judge's vote is {vote.status!r}" if missing else None,
        "labeled": float(not missing),
        "vote_share": vote.share,
    }


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, extremes, median and deviation of every numeric field, for each task and over all; masked rows left out."""
    counted = [row for row in rows if row.get("mask_sample") is not True]
    tasks: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted:
        if isinstance(row.get(TASK), int):
            tasks[row[TASK]].append(row)
    overall = _statistics(counted)
    return {
        "group_level_metrics": [{TASK: task, **_statistics(tasks[task])} for task in sorted(tasks)],
        "agent_metrics": {**overall, "masked": len(rows) - len(counted)},
        "key_metrics": {name: overall[name] for name in ("mean/reward",) if name in overall},
    }


def _statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
            if number and not name.startswith("_ng_"):
                columns[name].append(float(value))
    return {f"{kind}/{name}": float(of(values)) for name, values in columns.items() for kind, of in STATISTICS.items()}
