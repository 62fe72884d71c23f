"""Rewards for any loop that has prompts and completions.

corl judge --model Qwen/Qwen3-1.7B --frozen --port 8101
python anything.py
"""

from corl.adapters import PeerReward

prompts = ["What is 17 + 25? Put the answer in \\boxed{}."] * 2
completions = ["17 + 25 = \\boxed{42}", "I think it is \\boxed{41}"]

with PeerReward("http://127.0.0.1:8101") as reward:
    scored = reward.score(prompts, completions)

for completion, value, vote in zip(completions, scored.rewards, scored.votes, strict=True):
    print(f"{value}  {completion!r}  vote {vote.status}: {vote.answer} ({vote.count} of {vote.parsed})")
