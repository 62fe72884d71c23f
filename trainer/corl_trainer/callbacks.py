"""What happens around a step: lease, push, evaluation, records, and the stop that was asked for."""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from corl_trainer.checkpoints import Checkpoints
from corl_trainer.main_rank import MainRank
from corl_trainer.memory import peak_memory
from corl_trainer.metrics import progress_line
from corl_trainer.ranks import any_rank, main_does
from corl_trainer.stops import ExitCode, StoppedNow

if TYPE_CHECKING:
    from corl_trainer.grpo import MemberTrainer

__all__ = ["StepCallback", "StopRequest"]

logger = logging.getLogger(__name__)


class StopRequest:
    """SIGTERM and SIGINT. While training the step under way is finished and checkpointed; a second signal ends it at
    once, checkpointed as it was before the step. Before training there is nothing to finish: the process exits.

    On several ranks a second signal changes nothing: it reaches them at different points of the step.
    """

    def __init__(self, alone: bool) -> None:
        self._alone = alone
        self.asked = False
        self.training = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: object) -> None:
        if not self.training:
            raise SystemExit(int(ExitCode.REQUESTED))
        if self.asked and self._alone:
            raise StoppedNow("stopped on request, in the middle of a step")
        self.asked = True
        print("stopping after this step; a second signal stops at once", file=sys.stderr, flush=True)


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """`trainer` is set once it is built."""

    trainer: MemberTrainer

    def __init__(
        self,
        member: str,
        incarnation: int,
        steps: int,
        eval_every: int | None,
        evaluates: bool,
        checkpoints: Checkpoints,
        stop: StopRequest,
        main: MainRank | None,
    ) -> None:
        self._member = member
        self._incarnation = incarnation
        self._steps = steps
        self._eval_every = eval_every
        self._evaluates = evaluates
        self._checkpoints = checkpoints
        self._stop = stop
        self._main = main
        self._seconds: dict[str, float] = {}
        self.stopped = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The weights of this step are served before anything is asked of them."""
        self.trainer.push_weights()
        if self._due(state.global_step):
            self._evaluate(state, control)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.phases.begin()
        self.trainer.remember_rng()
        main_does(self.trainer.accelerator, lambda: self._beat(state.global_step))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.forget_rng()
        self.trainer.push_weights()
        if self._due(state.global_step):
            self._evaluate(state, control)
        self._seconds = self.trainer.phases.end()
        if self._main:
            self._main.metrics.add(peak_memory(self.trainer.accelerator.device))
            self.trainer.extra_logs.update(self._main.metrics.values)
            self.trainer.extra_logs.update({f"seconds/{name}": value for name, value in self._seconds.items()})
        if any_rank(self.trainer.accelerator, self._stop.asked):
            control.should_save = True
            control.should_training_stop = True
            self.stopped = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if self._main is None or "loss" not in (logs or {}):
            return
        main, step = self._main, state.global_step
        record = {name: value for name, value in logs.items() if not name.startswith("seconds/")}
        main.log.write("step", step, incarnation=self._incarnation, seconds=self._seconds, **record)
        print(progress_line(self._member, step, self._steps, main.metrics.values, self._seconds), flush=True)
        for sign in main.signs(step, record):
            logger.warning("%s step %d: %s", self._member, step, sign.message)
            main.log.write("warning", step, sign=sign.kind, value=sign.value, message=sign.message)

    def _beat(self, step: int) -> None:
        assert self._main is not None
        lease = self._main.services.lease
        lease.check()
        lease.advance(step)

    def _due(self, step: int) -> bool:
        if not self._evaluates:
            return False
        return step in (0, self._steps) or (self._eval_every is not None and step % self._eval_every == 0)

    def _evaluate(self, state: TrainerState, control: TrainerControl) -> None:
        step = state.global_step
        with self.trainer.phases.measure("evaluate"):
            accuracy = main_does(self.trainer.accelerator, lambda: self._accuracy(step))
        best = self._checkpoints.best()
        if step > 0 and (best is None or accuracy > best.accuracy):
            self.trainer.best_candidate = (step, accuracy)
            control.should_save = True

    def _accuracy(self, step: int) -> float:
        main = self._main
        assert main is not None
        found = main.evaluate(step)
        values = found.metrics()
        main.log.write("eval", step, problems=found.problems, samples=found.samples, **values)
        self.trainer.extra_logs.update(values)
        shown = "  ".join(f"{name.removeprefix('eval/')} {value:.3f}" for name, value in values.items())
        print(f"{self._member} {step}/{self._steps}  held-out: {shown}", flush=True)
        return found.pass_at_1
