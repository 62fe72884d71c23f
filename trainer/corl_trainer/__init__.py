"""The trainer of one cohort member: GRPO on rewards from peers, over HTTP."""
