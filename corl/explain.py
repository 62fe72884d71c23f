"""A vote in words: which answers there were, which count as the same, and why the vote fell as it did."""

from __future__ import annotations

from corl.answers import AnswerKey
from corl.wire import AnswerCount, Policy, ScoredItem, Vote

__all__ = ["explain", "reason"]

WIDEST = 60


def explain(title: str, item: ScoredItem, policy: Policy) -> str:
    """Lines for people. The item must have been asked for with its histogram."""
    vote = item.vote or Vote(status="none")
    lines = [title, f"  vote {vote.status}: {reason(vote, policy)}"]
    for place, entries in enumerate(_classes(vote)):
        mark = "=" if place == 0 and vote.keys else " "
        spellings = ", ".join(f"{_short(entry.answer)} x{entry.count}" for entry in entries)
        lines.append(f"  {mark} {sum(entry.count for entry in entries):>4}  {spellings}  [{_short(entries[0].key)}]")
    unread = vote.total - vote.parsed
    if unread:
        lines.append(f"    {unread:>4}  (no answer found)")
    for index, answer in enumerate(item.answers):
        shown = "no answer" if answer is None else _short(answer)
        reward = "-" if item.rewards is None else f"{item.rewards[index]:g}"
        lines.append(f"  completion {index}: {shown} -> {reward}")
    return "\n".join(lines)


def reason(vote: Vote, policy: Policy) -> str:
    """Why a vote has its status, in one sentence."""
    if vote.status == "none":
        if vote.total == 0:
            return "no vote was taken, as the judge's weights are older than asked for"
        return f"none of {vote.total} completions holds an answer"
    second = vote.runner_up
    if vote.status == "tie":
        return f"several answers have {_most(vote)} of {vote.parsed} each, and ties abstain"
    shares = f"{_short(vote.answer or '')} has {vote.count} of {vote.parsed} answers, a share of {vote.share:.2f}"
    behind = "" if second is None else f"; next is {_short(second.answer)} with {second.count}"
    if vote.status == "ok":
        return shares + behind
    if vote.parsed < policy.min_parsed:
        return f"{shares}, but min_parsed asks for {policy.min_parsed} answers"
    if vote.share < policy.threshold:
        return f"{shares}, below the threshold of {policy.threshold:g}{behind}"
    return f"{shares}, of weights older than asked for{behind}"


def _most(vote: Vote) -> int:
    if vote.count:
        return vote.count
    return max((sum(entry.count for entry in entries) for entries in _classes(vote)), default=0)


def _classes(vote: Vote) -> list[list[AnswerCount]]:
    """Spellings that count as the same: the winner's first, the others by their number."""
    # Marks on a key (decimals, percent, unit) do not make another answer: keys are compared, not their texts.
    winning = {AnswerKey.parse(key) for key in vote.keys}
    winner: list[AnswerCount] = []
    others: dict[AnswerKey, list[AnswerCount]] = {}
    for entry in vote.histogram or []:
        key = AnswerKey.parse(entry.key)
        (winner if key in winning else others.setdefault(key, [])).append(entry)
    ranked = sorted(others.values(), key=lambda entries: -sum(entry.count for entry in entries))
    return [winner, *ranked] if winner else ranked


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 3]}..."
