"""SkyRL-gym: a one-turn environment whose reward is a judge; `environment.env_class=peer_math`.

corl judge --model meta-llama/Llama-3.2-1B-Instruct --frozen --port 8101
"""

from typing import Any

from skyrl_gym.envs import register
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from corl.adapters.skyrl import PeerStep


class PeerMath(BaseTextEnv):
    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self._judged = PeerStep(env_config.judge, extras["extra_info"]["question"])

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(**self._judged(action))


register(id="peer_math", entry_point="skyrl_env:PeerMath")
