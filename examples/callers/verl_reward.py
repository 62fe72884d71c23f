"""verl: the reward function is found by file and name.

    corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101
    python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
        reward.custom_reward_function.path=verl_reward.py \
        reward.custom_reward_function.name=compute_score \
        +reward.custom_reward_function.reward_kwargs.judge=http://127.0.0.1:8101 \
        +reward.custom_reward_function.reward_kwargs.prompt_key=question

The data set's `extra_info` carries the problem's text under `question`, as verl's own GSM8K preparation writes it. For
reward managers that call in processes, name `compute_score_sync`.
"""

from corl.adapters.verl import compute_score, compute_score_sync

__all__ = ["compute_score", "compute_score_sync"]
