"""Reward functions for rubrics of verifiers, as prime-rl trains on them.

    from corl.adapters.verifiers import group_reward

    rubric = vf.Rubric(funcs=[group_reward("http://127.0.0.1:8101")])

A *group* function gets all rollouts of one prompt at once, by arguments named in the plural: one request a group. A
rubric knows no rollout without a label: `on_unlabeled` is `zero` or `error`. It turns exceptions into 0.0 with an error
in the log, which this module cannot change: watch for them, or score in `Env.finalize` of a version-1 environment with
`corl.adapters.AsyncPeerReward`, whose exceptions fail the episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

from corl.adapters.peer import Asking, AsyncPeerReward
from corl.adapters.texts import Conversational

__all__ = ["group_reward"]


def group_reward(judge: str, **asking: Unpack[Asking]) -> Callable[..., Awaitable[list[float]]]:
    """A group reward function. `infos` with a `problem_id` name the problems. Arguments as for `PeerReward`.

    Raises ValueError for `on_unlabeled="none"`, since a rubric sums what it gets.
    """
    asking.setdefault("on_unlabeled", "zero")
    if asking["on_unlabeled"] == "none":
        raise ValueError("on_unlabeled is 'none', but a rubric sums its rewards: use zero or error")
    ask = AsyncPeerReward(judge, **asking)

    async def peer_reward(
        prompts: Sequence[Conversational],
        completions: Sequence[Conversational],
        infos: Sequence[dict[str, Any] | None] | None = None,
    ) -> list[float]:
        ids = None if infos is None else [(info or {}).get("problem_id") for info in infos]
        return [0.0 if reward is None else reward for reward in await ask(prompts, completions, problem_id=ids)]

    return peer_reward
