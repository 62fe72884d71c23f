"""One member's training from its settings to its exit code: the parts built, joined, run, and taken down."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corl.cohort import load_problems
from corl.weights import snapshot_folder
from corl.wire import ProblemRollouts
from corl_trainer.callbacks import StepCallback, StopRequest
from corl_trainer.checkpoints import Checkpoints
from corl_trainer.connect import Services, connect, service_errors
from corl_trainer.final import write_final
from corl_trainer.generation import JudgeGeneration
from corl_trainer.grpo import MemberTrainer
from corl_trainer.main_rank import INTRINSIC, MainRank
from corl_trainer.phases import Phases
from corl_trainer.ranks import Ranks, main_does, main_only
from corl_trainer.rewards import IntrinsicReward, QuietUnlabeled, VoteReward
from corl_trainer.rollouts import Asked
from corl_trainer.schedule import Schedule
from corl_trainer.settings import TrainerSettings, grpo_config
from corl_trainer.sources import StepBatch, Verdicts
from corl_trainer.stops import ExitCode, Fenced, SettingsError, TrainerStop
from corl_trainer.view import MemberView

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from corl_trainer.trl_import import GRPOConfig

__all__ = ["train_member"]

logger = logging.getLogger(__name__)


def train_member(settings: TrainerSettings) -> ExitCode:
    """Train one member to its last step, or until a reason to stop. Says on standard error why it stopped.

    Raises SettingsError before anything was started.
    """
    from accelerate import PartialState
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = grpo_config(settings)
    ranks: Ranks = PartialState()
    checkpoints = Checkpoints(settings.checkpoints, settings.training.keep_checkpoints, settings.training.save_every)
    step = main_does(ranks, lambda: checkpoints.resume(settings.resume_step))
    if step >= settings.training.steps and (settings.member_dir / "final" / "config.json").is_file():
        logger.info("%s: all %d steps are done", settings.member, settings.training.steps)
        return ExitCode.DONE
    with StopRequest(alone=ranks.num_processes == 1) as stop, _quiet_unlabeled():
        services: Services | None = None
        try:
            services = main_only(ranks, lambda: connect(settings, step))
            return Member(settings, config, ranks, checkpoints, stop, services, step).train()
        except TrainerStop as error:
            if ranks.is_main_process:
                print(f"corl train --member {settings.member}: {error}", file=sys.stderr)
                if error.code is ExitCode.SERVICE_GONE:
                    print(f"once it is back, go on with: {settings.resume_command()}", file=sys.stderr)
                if services is not None:
                    services.close()
            else:
                logger.info("%s: rank %d stops with the main one: %s", settings.member, ranks.process_index, error)
            main_does(ranks, lambda: None)  # the rank that ends first would have torchrun kill the others
            return error.code
        finally:
            if services is not None:
                services.close()
            _leave_process_group()


@dataclass
class Member:
    """The parts of one run, from `step` on. `services` and `main` only on the main rank."""

    settings: TrainerSettings
    config: GRPOConfig
    ranks: Ranks
    checkpoints: Checkpoints
    stop: StopRequest
    services: Services | None
    step: int
    phases: Phases = field(default_factory=Phases)

    def __post_init__(self) -> None:
        settings, cohort = self.settings, self.settings.cohort
        problems = load_problems(cohort)
        if settings.reward != "truth" and problems.answers is not None:
            raise SettingsError(f"reward is {settings.reward!r}, yet answers of training problems were loaded")
        try:
            self.schedule = Schedule(problems.ids, settings.training.data_seed, cohort.rollouts.problems_per_step)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self.tokenizer = self._tokenizer()
        self.view = MemberView(cohort, settings.member, problems, chat=bool(self.tokenizer.chat_template))
        self.main = main_only(self.ranks, self._main_rank)
        self.incarnation = main_does(self.ranks, lambda: self._here().services.lease.incarnation)
        self.trainer = self._trainer()

    # Running -----------------------------------------------------------------------------------------------------

    def train(self) -> ExitCode:
        folder = str(self.checkpoints.folder(self.step)) if self.step else None
        code, why = ExitCode.ERROR, "an unexpected error"
        self.stop.training = True
        try:
            self.trainer.train(resume_from_checkpoint=folder)
            if self.callback.stopped and self.trainer.state.global_step < self.settings.training.steps:
                code, why = ExitCode.REQUESTED, "stopped on request"
            else:
                main_does(self.ranks, self._write_final)
                code, why = ExitCode.DONE, "all steps done"
            return code
        except TrainerStop as error:
            code, why = error.code, str(error)
            if not isinstance(error, Fenced):  # a newer trainer owns the folder
                self._save_what_is_done()
            raise
        finally:
            self.stop.training = False
            if self.main is not None:
                self.main.rollouts.drop_queued()
                self.main.log.write("end", self.trainer.state.global_step, code=int(code), reason=why)

    def _save_what_is_done(self) -> None:
        try:
            saved = self.trainer.emergency_checkpoint()
        except TrainerStop as error:
            logger.error("%s", error)
            return
        if saved is not None and self.ranks.is_main_process:
            print(f"corl train --member {self.settings.member}: checkpoint of step {saved} taken", file=sys.stderr)

    def _write_final(self) -> None:
        settings = self.settings
        step = self.trainer.state.global_step
        write_final(
            snapshot_folder(settings.weights, settings.run, settings.member, self.incarnation, step),
            settings.member_dir / "final",
            model=settings.cohort.model_path(settings.member),
            revision=settings.cohort.members[settings.member].revision,
            tokenizer=self.tokenizer,
            trust_remote_code=self.config.trust_remote_code,
        )

    # Building ----------------------------------------------------------------------------------------------------

    def _main_rank(self) -> MainRank:
        assert self.services is not None
        return MainRank.build(self.settings, self.services, self.view, self.step)

    def _trainer(self) -> MemberTrainer:
        from transformers import PrinterCallback, ProgressCallback

        settings, training = self.settings, self.settings.training
        revision = settings.cohort.members[settings.member].revision
        if revision is not None:  # TRL knows of none, and would train what the judge does not serve
            self.config.model_init_kwargs = {**(self.config.model_init_kwargs or {}), "revision": revision}
        self.callback = StepCallback(
            settings.member,
            self.incarnation,
            training.steps,
            training.eval_every,
            settings.cohort.problems.heldout is not None,
            self.checkpoints,
            self.stop,
            self.main,
        )
        trainer = MemberTrainer(
            generation=self._generation,
            checkpoints=self.checkpoints,
            incarnation=self.incarnation,
            intrinsic=settings.reward if settings.reward in INTRINSIC else None,
            phases=self.phases,
            before_save=lambda: self._here().services.lease.check(),
            model=settings.cohort.model_path(settings.member),
            reward_funcs=[self._reward()],
            args=self.config,
            train_dataset=self._dataset(),
            processing_class=self.tokenizer,
            peft_config=self._lora(),
            callbacks=[self.callback],
        )
        for unwanted in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(unwanted)
        self.callback.trainer = trainer
        return trainer

    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        cohort, member = self.settings.cohort, self.settings.member
        return AutoTokenizer.from_pretrained(
            cohort.model_path(member),
            revision=cohort.members[member].revision,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=self.config.trust_remote_code,
        )

    def _dataset(self) -> Dataset:
        """The whole schedule, a row for each problem of a step: to resume is to skip rows, whatever seed and ranks."""
        from datasets import Dataset

        steps = self.settings.training.steps
        dataset = Dataset.from_list([self.view.row(slot, problem) for slot, problem in self.schedule.rows(steps)])
        if set(dataset.column_names) != {"slot", "problem_id", "prompt"}:
            raise RuntimeError(f"the dataset has the columns {dataset.column_names}: none may hold an answer")
        return dataset

    def _lora(self) -> Any:
        lora = self.settings.training.lora
        if lora is None:
            return None
        from peft import LoraConfig

        return LoraConfig(task_type="CAUSAL_LM", **lora.model_dump())

    def _generation(self, **trl: Any) -> JudgeGeneration:
        return JudgeGeneration(
            collect=self._collect,
            push=self._push,
            per_step=self.settings.cohort.rollouts.problems_per_step,
            options=self.view.options,
            **trl,
        )

    def _reward(self) -> VoteReward | IntrinsicReward:
        reward = self.settings.reward
        if reward in INTRINSIC:
            return IntrinsicReward(
                reward, lambda: self.trainer.intrinsic_rewards, self.ranks, self._batch, self._observe
            )
        return VoteReward(reward, self._finish, self.ranks, self._batch, self._observe, self.phases)

    # Called in a step, on the main rank only ---------------------------------------------------------------------

    def _here(self) -> MainRank:
        assert self.main is not None, "services are the main rank's"
        return self.main

    def _batch(self) -> StepBatch:
        return StepBatch(self.trainer.state.global_step, self.trainer.vllm_generation.current)

    def _collect(self, step: int, asked: list[Asked]) -> list[ProblemRollouts]:
        main, settings = self._here(), self.settings
        with service_errors(main.services.lease):
            problems = main.rollouts.collect(step, asked)
            if settings.cohort.rollouts.ahead and step + 1 < settings.training.steps:
                main.rollouts.queue(step + 1, self._asked(step + 1))
            if main.source is not None:
                main.source.begin(StepBatch(step, problems))
        return problems

    def _asked(self, step: int) -> list[Asked]:
        """A later step's problems, tokenized as TRL will."""
        ids = self.schedule.problems(step)
        tokens, _, _ = self.trainer._tokenize_prompts([self.view.row(0, problem)["prompt"] for problem in ids])
        return [Asked(i, list(t), self.view.options(i)) for i, t in zip(ids, tokens, strict=True)]

    def _finish(self, batch: StepBatch) -> Verdicts:
        main = self._here()
        assert main.source is not None
        with service_errors(main.services.lease):
            return main.source.finish(batch)

    def _observe(self, batch: StepBatch, verdicts: Verdicts) -> None:
        self._here().metrics.observe(batch, verdicts)

    def _push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], tied: Mapping[str, str]) -> None:
        main = self._here()
        with service_errors(main.services.lease):
            main.metrics.add(main.weights.push(version, tensors, tied).metrics())


@contextlib.contextmanager
def _quiet_unlabeled() -> Iterator[None]:
    name, quiet = "trl.trainer.grpo_trainer", QuietUnlabeled()
    logging.getLogger(name).addFilter(quiet)
    try:
        yield
    finally:
        logging.getLogger(name).removeFilter(quiet)


def _leave_process_group() -> None:
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
