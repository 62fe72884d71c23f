"""TRL's GRPO with a judge as the only reward.

corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101
accelerate launch trl_grpo.py
"""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from corl.adapters.trl import PeerReward
from corl.wire import Policy

data = load_dataset("openai/gsm8k", "main", split="train").map(
    lambda row: {"prompt": [{"role": "user", "content": row["question"] + " Put the answer in \\boxed{}."}]},
    remove_columns=["question", "answer"],
)
trainer = GRPOTrainer(
    model="Qwen/Qwen3-0.6B",
    reward_funcs=PeerReward("http://127.0.0.1:8101", policy=Policy(samples=16, threshold=0.3)),
    train_dataset=data,
    args=GRPOConfig(output_dir="out", num_generations=8, max_completion_length=1024),
)
trainer.train()
