"""Named settings for fields that a cohort file does not give.

`paper`: GRPO and vote settings of Co-RL (arXiv 2608.17253) as its released example scripts for language models set
them (`llm/examples/*.sh` of the release; the paper's own tables are not in the repository). Where TRL 1.16 renamed an
argument, the new name is used with the same meaning.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["PRESETS", "preset"]

SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."

PAPER: dict[str, Any] = {
    # The suffix that the release appends to every problem.
    "prompt": {"template": "{problem}\n" + SUFFIX},
    "vote": {
        "threshold": 0.0,  # --self_consistency_threshold 0.0: the plurality wins at any share
        "ties": "first",  # the release's Counter.most_common(1): the answer seen first wins a tie
        "min_parsed": 1,  # one parseable answer is a vote there
    },
    "rollouts": {
        "n": 8,  # --num_generations 8
        "problems_per_step": 16,  # 2 a device x 32 accumulated x 2 processes = 128 completions = 16 problems x 8
        "max_tokens": 1024,  # --max_completion_length 1024
        "temperature": 1.0,  # --temperature 1.0; top_p 1 and top_k 0 are the release's implicit defaults
        "ahead": 0,  # strictly on-policy
    },
    "training": {
        "steps": 50,  # --max_steps 50
        "data_seed": 42,  # --data_seed 42, the same for every group
        "seed": 42,  # --seed 42, to which each group adds its own offset
        "dtype": "bfloat16",  # --bf16
        "save_every": 10,  # --save_steps 10
        "eval_every": 10,  # --eval_steps 10, with eval_on_start
        "eval_samples": 1,  # --num_generations_eval 1
        "learning_rate": 1e-6,  # --learning_rate 1e-6
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "warmup_steps": 0.03,  # --warmup_ratio 0.03; a fraction below 1 is a ratio since transformers 5
        "adam_beta2": 0.95,
        "weight_decay": 0.0,  # implicit default of the release
        "max_grad_norm": 1.0,  # implicit default; gradient_clip 1 in its DeepSpeed file
        "per_device_train_batch_size": 2,  # bnpo normalises per micro-batch, so the split is part of the objective
        "num_iterations": 1,  # implicit default
        "epsilon": 0.2,  # implicit default
        "beta": 0.0,  # --beta 0: no KL term
        "loss_type": "bnpo",
        "scale_rewards": "group",
        "vllm_importance_sampling_mode": "token_truncate",
        "gradient_checkpointing": True,  # with use_reentrant=False
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
}

PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER}


def preset(name: str) -> dict[str, Any]:
    """A copy of a preset's values, nested as in cohort.yaml. Raises KeyError."""
    return copy.deepcopy(PRESETS[name])
