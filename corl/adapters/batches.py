"""From a trainer's flat rows to score requests, and from the answers back to rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from corl.adapters.texts import ChatPrompt, Conversational, completion_text, prompt_of
from corl.wire import Options, Policy, Sampling, ScoredItem, ScoreItem, ScoresRequest, Task, Vote

__all__ = ["Batch", "Scored", "group"]

MOST_ITEMS = 4096
MOST_COMPLETIONS = 65_536
"""What a judge takes in one request by default."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One entry a completion. Where `votes[i].status` is not `ok` there is no label and `rewards[i]` is None."""

    rewards: list[float | None]
    answers: list[str | None]
    votes: list[Vote]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows grouped by problem. `rows[item id]` are the places of its completions."""

    items: list[ScoreItem]
    rows: dict[str, list[int]]

    def requests(
        self, wanted: Iterable[ScoreItem], policy: Policy, sampling: Sampling | None, run: str | None, step: int | None
    ) -> Iterator[ScoresRequest]:
        """As few as the judge's limits allow: one, for any usual batch."""
        taken: list[ScoreItem] = []
        completions = 0
        for item in wanted:
            size = len(item.completions)
            if taken and (len(taken) == MOST_ITEMS or completions + size > MOST_COMPLETIONS):
                yield ScoresRequest(items=taken, policy=policy, sampling=sampling, run=run, step=step)
                taken, completions = [], 0
            taken.append(item)
            completions += size
        if taken:
            yield ScoresRequest(items=taken, policy=policy, sampling=sampling, run=run, step=step)

    def spread(self, scored: Iterable[ScoredItem]) -> Scored:
        """Verdicts at the places of their completions."""
        size = sum(map(len, self.rows.values()))
        rewards: list[float | None] = [None] * size
        answers: list[str | None] = [None] * size
        votes: list[Vote] = [Vote(status="none")] * size
        for item in scored:
            for place, row in enumerate(self.rows[item.id]):
                rewards[row] = None if item.rewards is None else item.rewards[place]
                answers[row] = item.answers[place]
                if item.vote is not None:
                    votes[row] = item.vote
        return Scored(rewards, answers, votes)


def group(
    prompts: Sequence[Conversational],
    completions: Sequence[Conversational],
    *,
    problem_id: Sequence[Any] | None = None,
    task: Task | Sequence[Task] = "math",
    options: Sequence[Options | None] | None = None,
) -> Batch:
    """One item for each problem: rows of equal prompt, problem id, task and options. Raises ValueError naming the row.

    Without a problem id, or where it is None, the prompt names the problem.
    """
    columns: dict[str, Sequence[Any] | None] = {
        "completions": completions,
        "problem_id": problem_id,
        "options": options,
    }
    if not isinstance(task, str):
        columns["task"] = task
    for title, column in columns.items():
        if column is not None and len(column) != len(prompts):
            raise ValueError(f"{title} has {len(column)} rows, prompts has {len(prompts)}")
    keys: dict[str, str] = {}
    rows: dict[str, list[int]] = {}
    parts: dict[str, tuple[str, ChatPrompt, Task, Options | None]] = {}
    texts = [completion_text(completion, f"completions.{row}") for row, completion in enumerate(completions)]
    for row, prompt in enumerate(prompts):
        given = prompt_of(prompt, f"prompts.{row}")
        name = None if problem_id is None or problem_id[row] is None else str(problem_id[row])
        kind: Task = task if isinstance(task, str) else task[row]
        choices = None if options is None else options[row]
        key = _identity(given, name, kind, choices)
        item = keys.setdefault(key, str(len(keys)))
        if item not in rows:
            rows[item] = []
            parts[item] = (
                name or hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest(),
                given,
                kind,
                choices,
            )
        rows[item].append(row)
    items = [
        ScoreItem(
            id=item,
            problem_id=name,
            prompt=given,
            completions=[texts[row] for row in rows[item]],
            task=kind,
            options=choices,
        )
        for item, (name, given, kind, choices) in parts.items()
    ]
    return Batch(items, rows)


def _identity(prompt: ChatPrompt, name: str | None, task: Task, options: Options | None) -> str:
    shown = prompt if isinstance(prompt, str) else [message.model_dump() for message in prompt]
    return json.dumps([shown, name, task, options])
