"""GRPO of one member: TRL's `GRPOTrainer` with the judge as its engine, and little else changed.

What is changed, and why:

- rollouts and weights go through `JudgeGeneration`, attached after TRL's own construction so that neither vLLM nor a
  vLLM server is needed; `use_vllm` is then switched on, for without it TRL drops the importance ratio silently;
- the intrinsic rewards are taken from the forward pass that TRL makes anyway for the old log-probabilities;
- a checkpoint is marked whole when it is, and an emergency one is possible at any point of a step.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from corl_trainer.checkpoints import Checkpoints
from corl_trainer.generation import JudgeGeneration
from corl_trainer.intrinsic import masked_mean, self_certainty
from corl_trainer.phases import Phases
from corl_trainer.ranks import main_does, share_stop
from corl_trainer.stops import StorageFailed, TrainerStop
from corl_trainer.trl_import import GRPOTrainer

__all__ = ["MemberTrainer"]

logger = logging.getLogger(__name__)


class MemberTrainer(GRPOTrainer):  # type: ignore[misc]
    """`generation` builds the seam from TRL's keyword arguments once the model is there."""

    def __init__(
        self,
        *,
        generation: Callable[..., JudgeGeneration],
        checkpoints: Checkpoints,
        incarnation: int,
        intrinsic: str | None,
        phases: Phases,
        before_save: Callable[[], None] = lambda: None,
        **trl: Any,
    ) -> None:
        super().__init__(**trl)
        self.phases = phases
        self.extra_logs: dict[str, float | None] = {}
        self.intrinsic_rewards: list[float] = []
        self.best_candidate: tuple[int, float] | None = None
        self._checkpoints = checkpoints
        self._incarnation = incarnation
        self._before_save = before_save
        self._intrinsic = intrinsic
        self._intrinsic_due = False
        self._rng: Any = None
        self.use_vllm = True
        self.vllm_mode = "server"
        self._last_loaded_step = -1
        self.vllm_generation = generation(
            step=lambda: self.state.global_step,
            phases=phases,
            model=self.model,
            accelerator=self.accelerator,
            processing_class=self.processing_class,
            mode="server",
        )

    # Weights -----------------------------------------------------------------------------------------------------

    def push_weights(self) -> None:
        """Publish the weights as version = global step, unless they are already. A collective."""
        if self._last_loaded_step != self.state.global_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step

    # A step ------------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.vllm_generation.rows = [(row["slot"], row["problem_id"]) for row in inputs]
        self._intrinsic_due = self._intrinsic is not None
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.vllm_importance_sampling_correction:
            if "importance_sampling_ratio" not in output:
                raise RuntimeError("TRL did not compute the importance ratio: rollouts would be trained on uncorrected")
            self._log_clipped_share(output)
        return output

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        """Each prompt once: a batch holds every one of them `num_generations` times, and a chat template costs."""
        if self._is_vlm:
            return super()._tokenize_prompts(prompts)
        keys = [json.dumps(prompt) for prompt in prompts]
        distinct = dict(zip(keys, prompts, strict=True))
        ids, images, fields = super()._tokenize_prompts(list(distinct.values()))
        found = dict(zip(distinct, ids, strict=True))
        return [list(found[key]) for key in keys], images, fields

    def _log_clipped_share(self, output: Mapping[str, Any]) -> None:
        """The share of tokens whose importance ratio was cut at its bound: how far the sampler's weights are behind."""
        import torch

        cap = self.vllm_importance_sampling_clip_max
        if cap is None or not self.vllm_importance_sampling_mode.startswith("token"):
            return
        ratio, mask = output["importance_sampling_ratio"], output["completion_mask"].bool()
        cut = ratio >= cap if self.vllm_importance_sampling_mode == "token_truncate" else ratio == 0.0
        # Counts and not shares: a rank whose completions are all masked must be in the gather like the others.
        cut_tokens, tokens = self.accelerator.gather(torch.stack([cut[mask].sum(), mask.sum()])[None]).sum(0).tolist()
        share = cut_tokens / tokens if tokens else 0.0
        self._metrics["train"]["sampling/importance_sampling_ratio/clipped"].append(share)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        if not self._intrinsic_due or torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        # The first pass after generation is that of the old log-probabilities, under the current weights.
        self._intrinsic_due = False
        wants_entropy = kwargs.pop("compute_entropy", False)
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(
            model,
            input_ids,
            attention_mask,
            logits_to_keep,
            *args,
            compute_entropy=wants_entropy or self._intrinsic == "entropy",
            **kwargs,
        )
        mask = attention_mask[:, -logits_to_keep:]
        if self._intrinsic == "entropy":
            rewards = -masked_mean(entropies.float(), mask)
        else:
            values = self_certainty(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                temperature=self.temperature,
                batch_size=kwargs.get("batch_size") or input_ids.size(0),
            )
            rewards = masked_mean(values, mask)
        self.intrinsic_rewards = rewards.tolist()
        return logps, entropies if wants_entropy else None, aux

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        logs.update({name: value for name, value in self.extra_logs.items() if value is not None})
        self.extra_logs.clear()
        super().log({name: value for name, value in logs.items() if not _is_nan(value)}, start_time)

    # Checkpoints -------------------------------------------------------------------------------------------------

    def remember_rng(self) -> None:
        """Called at the start of a step: an emergency checkpoint must hold the random state from before it."""
        import random

        import numpy
        import torch

        # A trainer on the CPU leaves a GPU of its host alone: asking would make a context there.
        cuda = torch.cuda.get_rng_state_all() if self.accelerator.device.type == "cuda" else None
        self._rng = (random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def forget_rng(self) -> None:
        """Called once the update is done: from here on the present state is the one to keep."""
        self._rng = None

    def emergency_checkpoint(self) -> int | None:
        """Checkpoint the updates done so far in the middle of a step; the step, or None if there is nothing new.

        A collective. Between updates the weights and the optimizer are those after `global_step` updates; only the
        random state has moved on, and is put back.
        """
        step: int = self.state.global_step
        if step == 0 or step in self._checkpoints.steps():
            return None
        if self._rng is not None:
            import random

            import numpy
            import torch

            python, legacy, cpu, cuda = self._rng
            random.setstate(python)
            numpy.random.set_state(legacy)
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
        self._save_checkpoint(self.model_wrapped, None)
        return step

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        main_does(self.accelerator, self._before_save)
        step = self.state.global_step
        error: Exception | None = None
        try:
            super()._save_checkpoint(model, trial)
        except TrainerStop:
            raise
        except Exception as raised:  # torch and safetensors each have their own for a full disk
            error = StorageFailed(
                f"checkpoint of step {step} could not be written to {self._checkpoints.root}: {raised}"
            )
        share_stop(self.accelerator, error)
        main_does(self.accelerator, lambda: self._mark_whole(step))

    def _mark_whole(self, step: int) -> None:
        accuracy = self.best_candidate[1] if self.best_candidate and self.best_candidate[0] == step else None
        try:
            self._checkpoints.complete(step, self._incarnation, accuracy)
        except OSError as error:
            raise StorageFailed(f"checkpoint of step {step} could not be completed: {error}") from error


def _is_nan(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
