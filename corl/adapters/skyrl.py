"""One step of a SkyRL-gym environment: the answer is judged, and the episode ends.

    class Math(BaseTextEnv):
        def __init__(self, env_config, extras):
            super().__init__()
            self.step = PeerStep(env_config.judge, extras["question"])

SkyRL-gym has no word for an episode without a label: `on_unlabeled` is `zero` or `error`.
"""

from __future__ import annotations

from typing import Any, Unpack

from corl.adapters.peer import Asking, PeerReward
from corl.adapters.texts import Conversational

__all__ = ["PeerStep"]


class PeerStep:
    """`step(action)` of one episode. Arguments after the problem are those of `PeerReward`."""

    def __init__(
        self, judge: str, problem: Conversational, problem_id: str | None = None, **asking: Unpack[Asking]
    ) -> None:
        asking.setdefault("on_unlabeled", "zero")
        if asking["on_unlabeled"] == "none":
            raise ValueError("on_unlabeled is 'none', but an episode's reward is a number: use zero or error")
        self._reward = PeerReward(judge, **asking)
        self._problem = problem
        self._problem_id = problem_id

    def __call__(self, action: str) -> dict[str, Any]:
        """What `BaseTextEnv.step` returns. Raises JudgeError, RewardFailed, Unlabeled."""
        with self._reward as reward:
            scored = reward.score([self._problem], [action], problem_id=[self._problem_id])
            vote = scored.votes[0]
            [value] = reward.settle(scored)
        labeled = float(scored.rewards[0] is not None)
        return {
            "observations": [],
            "reward": value,
            "done": True,
            "metadata": {"labeled": labeled, "vote_share": vote.share},
        }
