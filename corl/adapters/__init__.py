"""A judge as the reward of another project's trainer. Nothing of those projects is imported or installed.

    corl.adapters           PeerReward, AsyncPeerReward: prompts and completions in, rewards out
    corl.adapters.trl       reward functions for TRL's GRPOTrainer and its kin
    corl.adapters.verl      `compute_score` for verl
    corl.adapters.verifiers reward functions for rubrics of verifiers (prime-rl)
    corl.adapters.skyrl     one step of a SkyRL-gym environment

OpenRLHF, slime and NeMo-Gym need no Python at all: they call the judge's `/compat` routes.

No label is None where the trainer has a word for it, and what `on_unlabeled` says where it has not. A judge that cannot
answer is always an exception, never a reward.
"""

from corl.adapters.peer import AsyncPeerReward, PeerReward, RewardFailed, Scored, Unlabeled

__all__ = ["AsyncPeerReward", "PeerReward", "RewardFailed", "Scored", "Unlabeled"]
