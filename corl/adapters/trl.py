"""Reward functions for TRL's trainers (GRPO, RLOO and what derives from them).

    from corl.adapters.trl import PeerReward

    GRPOTrainer(..., reward_funcs=PeerReward("http://127.0.0.1:8101"))

A row without a label is None, which TRL leaves out of the group's mean and spread (seen in 1.16; older releases may
count it as 0 where no other reward function applies). Dataset columns `problem_id`, `task` and `options` are used where
there are any. The judge's share of labeled rows and the size of its majorities are logged as metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from corl.adapters import peer
from corl.adapters.batches import Scored
from corl.adapters.texts import Conversational

__all__ = ["AsyncPeerReward", "PeerReward"]

Columns = dict[str, Any]


class PeerReward(peer.PeerReward):
    """A synchronous reward function: the whole batch of a rank in one request. `name` is that of the metric."""

    def __init__(self, judge: str, *, name: str = "peer_reward", **asking: Unpack[peer.Asking]) -> None:
        super().__init__(judge, **asking)
        self.__name__ = name

    def __call__(
        self, prompts: Sequence[Conversational], completions: Sequence[Conversational], **columns: Any
    ) -> list[float | None]:
        """Called by TRL with every column of the batch. Raises as `corl.adapters.PeerReward` does."""
        scored = self.score(prompts, completions, **_used(columns))
        _log(columns.get("log_metric"), self.__name__, scored)
        return self.settle(scored)


class AsyncPeerReward(peer.AsyncPeerReward):
    """The same for asyncio: TRL awaits all asynchronous reward functions of a step together, so that several judges,
    or slow fresh votes, do not wait for one another."""

    def __init__(self, judge: str, *, name: str = "peer_reward", **asking: Unpack[peer.Asking]) -> None:
        super().__init__(judge, **asking)
        self.__name__ = name

    async def __call__(
        self, prompts: Sequence[Conversational], completions: Sequence[Conversational], **columns: Any
    ) -> list[float | None]:
        """Called by TRL with every column of the batch. Raises as `corl.adapters.PeerReward` does."""
        scored = await self.score(prompts, completions, **_used(columns))
        _log(columns.get("log_metric"), self.__name__, scored)
        return self.settle(scored)


def _used(columns: Columns) -> Columns:
    used = {name: columns.get(name) for name in ("problem_id", "task", "options")}
    state = columns.get("trainer_state")
    return {**used, "step": None if state is None else state.global_step}


def _log(log_metric: Callable[[str, float], None] | None, name: str, scored: Scored) -> None:
    if log_metric is None or not scored.votes:
        return
    log_metric(f"{name}/labeled", sum(reward is not None for reward in scored.rewards) / len(scored.rewards))
    log_metric(f"{name}/vote_share", sum(vote.share for vote in scored.votes) / len(scored.votes))
