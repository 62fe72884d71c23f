"""Co-RL: a cohort of decoupled language models trained without labels, each rewarded by its peers' majority votes.

This package holds the method (answers, votes, rewards, diversity) and the wire contract (cohort file, REST models,
client). It is light on purpose: it imports neither torch nor FastAPI.

Source: *Co-RL: Unsupervised Reasoning Emerges from Diverse Cohort in Multi-agent RL*, arXiv 2608.17253.
"""

__version__ = "0.1.0"
