"""verifiers: an environment whose rubric is a judge. prime-rl trains on it by its id.

corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101
"""

import verifiers as vf
from datasets import load_dataset

from corl.adapters.verifiers import group_reward


def load_environment(judge: str = "http://127.0.0.1:8101") -> vf.Environment:
    data = load_dataset("openai/gsm8k", "main", split="train")
    rubric = vf.Rubric(funcs=[group_reward(judge, on_unlabeled="zero")])
    return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Put the answer in \\boxed{}.")
