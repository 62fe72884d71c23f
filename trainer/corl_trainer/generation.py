"""TRL's seam for rollouts and weights: a `VLLMGeneration` whose engine is the member's own judge.

TRL calls `sync_weights()` and `generate(...)` on every rank. Gathering sharded parameters (FSDP, ZeRO-3) is TRL's own
`_iter_named_params`; talking to the judge is the main rank's, and an error there is raised on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from corl.wire import ProblemRollouts
from corl_trainer.phases import Phases
from corl_trainer.ranks import main_does, share_stop
from corl_trainer.rollouts import Asked
from corl_trainer.trl_import import VLLMGeneration

if TYPE_CHECKING:
    import torch

__all__ = ["JudgeGeneration", "Row", "merged_parameters", "tied_names"]

Row = tuple[int, str]
"""(slot, problem id) of one completion's place in the batch."""

Collect = Callable[[int, list[Asked]], list[ProblemRollouts]]
Push = Callable[[int, Iterable[tuple[str, "torch.Tensor"]], Mapping[str, str]], None]


class JudgeGeneration(VLLMGeneration):  # type: ignore[misc]
    """`collect` and `push` are called on the main rank only; `step` tells the step under way.

    `rows` must hold this rank's (slot, problem id) before `generate`; `current` holds the step's rollouts afterwards
    (on the main rank; elsewhere it is empty).
    """

    def __init__(
        self,
        *,
        step: Callable[[], int],
        collect: Collect,
        push: Push,
        per_step: int,
        options: Callable[[str], Any],
        phases: Phases,
        **trl: Any,
    ) -> None:
        self._step = step
        self._collect = collect
        self._push = push
        self._per_step = per_step
        self._options = options
        self._phases = phases
        self.rows: list[Row] = []
        self.current: list[ProblemRollouts] = []
        super().__init__(**trl)

    def _init_vllm(self) -> None:
        self.accelerator.wait_for_everyone()

    def sync_weights(self) -> None:
        """Publish the weights as version = step. A collective.

        The generator of parameters is always drained: ranks that stopped halfway would leave the others in a gather.
        """
        with self._phases.measure("publish"):
            parameters = self._parameters()
            error: Exception | None = None
            try:
                if self.accelerator.is_main_process:
                    try:
                        self._push(self._step(), parameters, tied_names(self.model))
                    except Exception as raised:
                        error = raised
                for _ in parameters:
                    pass
            finally:
                # TRL leaves an adapter merged if its consumer fails, and training would go on with merged weights.
                _unmerge(self.model)
            share_stop(self.accelerator, error)

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter, gathered, by its name in the base checkpoint, with adapters merged."""
        if self._dist.is_fsdp or self._dist.is_zero3:
            gathered: Iterator[tuple[str, torch.Tensor]] = self._iter_named_params()
            return gathered
        if hasattr(self.model, "peft_config"):
            return merged_parameters(self.model)
        return ((self._fix_param_name_to_vllm(name), p.data) for name, p in self.model.named_parameters())

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]:
        """TRL's contract: this rank's prompts (each repeated) -> prompts, completions and [[log-probability]]."""
        from accelerate.utils import gather_object

        if len(self.rows) != len(prompts):
            raise RuntimeError(
                f"{len(prompts)} prompts but {len(self.rows)} rows: TRL's batch is not the one announced"
            )
        step = self._step()
        everything = list(zip(self.rows, prompts, strict=True))
        if self.accelerator.num_processes > 1:
            everything = gather_object(everything)
        groups = everything[::num_generations]
        slots = [slot for (slot, _), _ in groups]
        if slots != list(range(step * self._per_step, (step + 1) * self._per_step)):
            raise RuntimeError(
                f"step {step} was given the slots {slots[:3]}..{slots[-1:]}: the schedule was not followed"
            )

        def ask() -> tuple[list[list[int]], list[list[float]]]:
            asked = [Asked(problem_id, list(ids), self._options(problem_id)) for (_, problem_id), ids in groups]
            self.current = self._collect(step, asked)
            completions = [completion for problem in self.current for completion in problem.completions]
            return [c.token_ids for c in completions], [c.logprobs for c in completions]

        with self._phases.measure("rollouts"):
            ids, logprobs = main_does(self.accelerator, ask)
        first = self.accelerator.process_index * len(prompts)
        mine = slice(first, first + len(prompts))
        return prompts, ids[mine], [[[value] for value in sequence] for sequence in logprobs[mine]], None


def merged_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of a PEFT model as they would be with its adapters merged, which it never is.

    Merging and unmerging in place rounds the base weights a little every time: a run that was resumed from its adapter
    would go on from other weights than one that was not.
    """
    base = model.get_base_model()
    for name, parameter in base.named_parameters():
        if model.prefix in name:
            continue
        owner, wrapped, leaf = name.rpartition(".base_layer.")
        value = parameter.data
        if wrapped and leaf == "weight":
            layer = base.get_submodule(owner)
            for adapter in layer.active_adapters:
                value = value + layer.get_delta_weight(adapter).to(value.dtype)
        yield name.replace(".base_layer", ""), value


def tied_names(model: Any) -> dict[str, str]:
    """Parameters that are another one under a second name, e.g. lm_head.weight of a model with tied embeddings."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return dict(getattr(base, "all_tied_weights_keys", None) or {})


def _unmerge(model: Any) -> None:
    if hasattr(model, "unmerge_adapter") and any(getattr(module, "merged", False) for module in model.modules()):
        model.unmerge_adapter()
