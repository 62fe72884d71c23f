"""One member's training from its settings to its exit code: the parts built, joined, run, and taken down."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corl.cohort import ProblemSet, load_heldout, load_problems
from corl.weights import snapshot_folder
from corl.wire import Message, Options, Policy, ProblemRollouts, Sampling
from corl_trainer.callbacks import MainRank, StepCallback, StopRequest
from corl_trainer.checkpoints import Checkpoints
from corl_trainer.connect import Services, connect, service_errors
from corl_trainer.evaluate import Evaluator
from corl_trainer.final import write_final
from corl_trainer.generation import JudgeGeneration
from corl_trainer.grpo import MemberTrainer
from corl_trainer.metrics import StepMetrics
from corl_trainer.phases import Phases
from corl_trainer.publish import Publisher, served_dtypes
from corl_trainer.push import WeightsPush
from corl_trainer.ranks import Ranks, main_does, main_only
from corl_trainer.rewards import IntrinsicReward, QuietUnlabeled, VoteReward
from corl_trainer.rollouts import Asked, JudgeRollouts
from corl_trainer.runlog import RunLog
from corl_trainer.schedule import Schedule
from corl_trainer.settings import TrainerSettings, grpo_config
from corl_trainer.sources import Collective, OwnVote, PeerVotes, Rules, Source, StepBatch, Truth, Verdicts
from corl_trainer.stops import ExitCode, Fenced, SettingsError, TrainerStop
from corl_trainer.teachers import Teacher

if TYPE_CHECKING:
    from datasets import Dataset

    from corl_trainer.trl_import import GRPOConfig

__all__ = ["train_member"]

logger = logging.getLogger(__name__)
INTRINSIC = ("entropy", "certainty")


def train_member(settings: TrainerSettings) -> ExitCode:
    """Train one member to its last step, or until a reason to stop. Says on standard error why it stopped.

    Raises SettingsError before anything was started.
    """
    from accelerate import PartialState
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = grpo_config(settings)
    ranks: Ranks = PartialState()
    checkpoints = Checkpoints(settings.checkpoints, settings.training.keep_checkpoints)
    step = main_does(ranks, lambda: checkpoints.resume(settings.resume_step))
    if step >= settings.training.steps and (settings.member_dir / "final" / "config.json").is_file():
        logger.info("%s: all %d steps are done", settings.member, settings.training.steps)
        return ExitCode.DONE
    with StopRequest() as stop, _quiet_unlabeled():
        services: Services | None = None
        try:
            services = main_only(ranks, lambda: connect(settings, step))
            return Member(settings, config, ranks, checkpoints, stop, services).train(step)
        except TrainerStop as error:
            if ranks.is_main_process:
                print(f"corl train --member {settings.member}: {error}", file=sys.stderr)
                if error.code is ExitCode.SERVICE_GONE:
                    print(f"once it is back, go on with: {settings.resume_command()}", file=sys.stderr)
            return error.code
        finally:
            if services is not None:
                services.close()
            _leave_process_group()


@dataclass
class Member:
    """The parts of one run. `services` only on the main rank."""

    settings: TrainerSettings
    config: GRPOConfig
    ranks: Ranks
    checkpoints: Checkpoints
    stop: StopRequest
    services: Services | None
    phases: Phases = field(default_factory=Phases)

    def __post_init__(self) -> None:
        settings, cohort = self.settings, self.settings.cohort
        self.problems: ProblemSet = load_problems(cohort)
        if settings.reward != "truth" and self.problems.answers is not None:
            raise SettingsError(f"reward is {settings.reward!r}, yet answers of training problems were loaded")
        try:
            self.schedule = Schedule(self.problems.ids, settings.training.data_seed, cohort.rollouts.problems_per_step)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self.incarnation = main_does(self.ranks, lambda: self._services().lease.incarnation)
        self.rules = Rules(cohort.vote, cohort.problems.task, self.options)
        self.tokenizer = self._tokenizer()
        self.trainer: MemberTrainer
        self.main: MainRank | None = main_only(self.ranks, self._main_rank)

    # What a problem is, for this member --------------------------------------------------------------------------

    def options(self, problem_id: str) -> Options | None:
        return self.problems.options(problem_id) or self.settings.cohort.problems.options

    def prompt(self, text: str) -> str | list[Message]:
        """Chat messages where the tokenizer has a template for them, else the text."""
        form = self.settings.cohort.prompt
        return form.messages(text) if self.tokenizer.chat_template else form.text(text)

    def question(self, problem_id: str) -> str:
        return self.problems.text(problem_id, self.settings.cohort.members[self.settings.member].view)

    def row(self, slot: int, problem_id: str) -> dict[str, Any]:
        prompt = self.prompt(self.question(problem_id))
        if isinstance(prompt, list):
            return {"slot": slot, "problem_id": problem_id, "prompt": [message.model_dump() for message in prompt]}
        return {"slot": slot, "problem_id": problem_id, "prompt": prompt}

    # Running -----------------------------------------------------------------------------------------------------

    def train(self, step: int) -> ExitCode:
        callback = self._build()
        settings = self.settings
        folder = str(self.checkpoints.folder(step)) if step else None
        code, why = ExitCode.ERROR, "an unexpected error"
        self.stop.training = True
        try:
            self.trainer.train(resume_from_checkpoint=folder)
            if callback.stopped and self.trainer.state.global_step < settings.training.steps:
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
                self.main.withdraw()
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

    def _build(self) -> StepCallback:
        from transformers import PrinterCallback, ProgressCallback

        settings, training = self.settings, self.settings.training
        callback = StepCallback(
            settings.member,
            self.incarnation,
            training.steps,
            training.eval_every,
            settings.cohort.problems.heldout is not None,
            self.checkpoints,
            self.stop,
            self.main,
        )
        reward = self._reward()
        self.trainer = MemberTrainer(
            generation=self._generation,
            checkpoints=self.checkpoints,
            incarnation=self.incarnation,
            intrinsic=settings.reward if settings.reward in INTRINSIC else None,
            phases=self.phases,
            before_save=self._check_lease,
            model=settings.cohort.model_path(settings.member),
            reward_funcs=[reward],
            args=self.config,
            train_dataset=self._dataset(),
            processing_class=self.tokenizer,
            peft_config=self._lora(),
            callbacks=[callback],
        )
        for unwanted in (PrinterCallback, ProgressCallback):
            self.trainer.remove_callback(unwanted)
        callback.trainer = self.trainer
        return callback

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

        rows = [self.row(slot, problem_id) for slot, problem_id in self.schedule.rows(self.settings.training.steps)]
        dataset = Dataset.from_list(rows)
        assert set(dataset.column_names) == {"slot", "problem_id", "prompt"}, "no column may hold an answer"
        return dataset

    def _lora(self) -> Any:
        lora = self.settings.training.lora
        if lora is None:
            return None
        from peft import LoraConfig

        return LoraConfig(task_type="CAUSAL_LM", **lora.model_dump())

    def _generation(self, **trl: Any) -> JudgeGeneration:
        return JudgeGeneration(
            collect=self._collector(),
            push=self._pusher(),
            per_step=self.settings.cohort.rollouts.problems_per_step,
            options=self.options,
            **trl,
        )

    def _reward(self) -> Any:
        settings = self.settings
        accelerator = lambda: self.trainer.accelerator  # noqa: E731
        batch = lambda: StepBatch(self.trainer.state.global_step, self.trainer.vllm_generation.current)  # noqa: E731
        if settings.reward in INTRINSIC:
            values = lambda: self.trainer.intrinsic_rewards  # noqa: E731
            return IntrinsicReward(settings.reward, values, accelerator, batch, self._observe)
        self.source: Source | None = main_only(self.ranks, self._source)
        return VoteReward(settings.reward, self._finish, accelerator, batch, self._observe, self.phases)

    # The main rank's parts ---------------------------------------------------------------------------------------

    def _services(self) -> Services:
        assert self.services is not None, "services are the main rank's"
        return self.services

    def _check_lease(self) -> None:
        self._services().lease.check()

    def _observe(self, batch: StepBatch, verdicts: Verdicts) -> None:
        assert self.main is not None
        self.main.metrics.observe(batch, verdicts)

    def _finish(self, batch: StepBatch) -> Verdicts:
        assert self.source is not None
        with service_errors(self._services().lease):
            return self.source.finish(batch)

    def _main_rank(self) -> MainRank:
        settings, training = self.settings, self.settings.training
        every = training.sample_completions_every
        return MainRank(
            lease=self._services().lease,
            log=RunLog(settings.member_dir),
            metrics=StepMetrics(
                own_vote=self.rules.own_vote,
                accuracy=settings.reward == "truth",
                samples=RunLog(settings.member_dir, "completions.jsonl") if every else None,
                samples_every=every,
                question=self.question,
            ),
            evaluate=self._evaluator(),
            withdraw=lambda: self.rollouts.drop_queued(),
        )

    def _evaluator(self) -> Callable[[int], Any] | None:
        settings, services = self.settings, self._services()
        cohort, training = settings.cohort, settings.training
        if cohort.problems.heldout is None:
            return None
        evaluator = Evaluator(
            judge=services.own,
            member=settings.member,
            run=settings.run,
            incarnation=self.incarnation,
            problems=load_heldout(cohort)[: training.eval_limit],
            prompt=self.prompt,
            task=cohort.problems.task,
            options=cohort.problems.options,
            samples=training.eval_samples,
            max_tokens=cohort.rollouts.max_tokens,
            temperature=cohort.rollouts.temperature,
            limits=services.info.limits,
            deadline_s=training.service_deadline_s,
        )

        def evaluate(step: int) -> Any:
            with service_errors(services.lease):
                return evaluator.run_at(step)

        return evaluate

    def _collector(self) -> Callable[[int, list[Asked]], list[ProblemRollouts]]:
        if self.services is None:
            return _not_here
        settings, services, rollouts = self.settings, self.services, self.settings.cohort.rollouts
        self.rollouts = JudgeRollouts(
            judge=services.own,
            member=settings.member,
            run=settings.run,
            incarnation=self.incarnation,
            n=rollouts.n,
            sampling=Sampling(max_tokens=rollouts.max_tokens, temperature=rollouts.temperature),
            task=settings.cohort.problems.task,
            limits=services.info.limits,
            vocab_size=services.info.tokenizer.vocab_size,
            deadline_s=settings.training.service_deadline_s,
        )

        def collect(step: int, asked: list[Asked]) -> list[ProblemRollouts]:
            with service_errors(services.lease):
                problems = self.rollouts.collect(step, asked)
                if rollouts.ahead and step + 1 < settings.training.steps:
                    self.rollouts.queue(step + 1, self._asked(step + 1))
                if settings.reward not in INTRINSIC and self.source is not None:
                    self.source.begin(StepBatch(step, problems))
            return problems

        return collect

    def _asked(self, step: int) -> list[Asked]:
        """A later step's problems, tokenized as TRL will."""
        ids = self.schedule.problems(step)
        tokens, _, _ = self.trainer._tokenize_prompts([self.row(0, problem_id)["prompt"] for problem_id in ids])
        return [Asked(i, list(t), self.options(i)) for i, t in zip(ids, tokens, strict=True)]

    def _pusher(self) -> Callable[..., None]:
        if self.services is None:
            return _not_here
        settings, services = self.settings, self.services
        publisher = Publisher(
            root=settings.weights,
            run=settings.run,
            member=settings.member,
            incarnation=self.incarnation,
            dtypes=served_dtypes(settings.cohort.model_path(settings.member)),
        )
        publisher.clear_partial()
        weights = WeightsPush(services.own, publisher, settings.training.service_deadline_s)

        def push(*args: Any) -> None:
            with service_errors(services.lease):
                weights.push(*args)

        return push

    def _source(self) -> Source:
        settings = self.settings
        if settings.reward == "self":
            return OwnVote(self.rules)
        if settings.reward == "truth":
            return Truth(self.rules, self.problems.answer)
        teachers = {name: self._teacher(name) for name in settings.teachers}
        return Collective(teachers, self.rules) if settings.reward == "collective" else PeerVotes(teachers, self.rules)

    def _teacher(self, name: str) -> Teacher:
        settings, services, vote = self.settings, self._services(), self.settings.cohort.vote
        return Teacher(
            name=name,
            judge=services.teachers[name],
            run=settings.run,
            task=settings.cohort.problems.task,
            prompt=lambda problem_id: self.prompt(self.question(problem_id)),
            options=self.options,
            policy=Policy(
                samples=settings.cohort.rollouts.n,
                threshold=vote.threshold,
                ties=vote.ties,
                min_parsed=vote.min_parsed,
                wait_s=vote.wait_s,
                max_lag=vote.max_lag,
            ),
            limits=services.teacher_infos[name].limits,
            deadline_s=settings.training.service_deadline_s,
        )


def _not_here(*_: Any) -> Any:
    raise AssertionError("services are the main rank's")


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
