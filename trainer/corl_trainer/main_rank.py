"""The parts that only the main rank has: everything that talks to a service or writes a record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from corl.cohort import load_heldout
from corl.collapse import CollapseMonitor, Sign, StepSummary
from corl.wire import Policy, Sampling
from corl_trainer.connect import Services, service_errors
from corl_trainer.evaluate import Accuracy, Evaluator
from corl_trainer.metrics import StepMetrics
from corl_trainer.publish import Publisher, served_dtypes
from corl_trainer.push import WeightsPush
from corl_trainer.rollouts import JudgeRollouts
from corl_trainer.runlog import RunLog, read_member
from corl_trainer.settings import TrainerSettings
from corl_trainer.sources import Collective, OwnVote, PeerVotes, Rules, Source, Truth
from corl_trainer.teachers import Teacher
from corl_trainer.view import MemberView

__all__ = ["INTRINSIC", "MainRank"]

INTRINSIC = ("entropy", "certainty")
"""Rewards that the trainer's own forward pass gives, without any vote."""


@dataclass
class MainRank:
    """`source` is None for the intrinsic rewards, `evaluator` without held-out problems."""

    services: Services
    log: RunLog
    metrics: StepMetrics
    collapse: CollapseMonitor
    rollouts: JudgeRollouts
    weights: WeightsPush
    source: Source | None
    evaluator: Evaluator | None

    @classmethod
    def build(cls, settings: TrainerSettings, services: Services, view: MemberView, step: int) -> MainRank:
        incarnation = services.lease.incarnation
        rules = Rules(settings.cohort.vote, settings.cohort.problems.task, view.options)
        weights = _weights(settings, services)
        weights.publisher.clear_partial()
        every = settings.training.sample_completions_every
        main = cls(
            services=services,
            log=RunLog(settings.member_dir),
            metrics=StepMetrics(
                own_votes=rules.own_votes,
                accuracy=settings.reward == "truth",
                samples=RunLog(settings.member_dir, "completions.jsonl") if every else None,
                samples_every=every,
                question=view.question,
            ),
            collapse=CollapseMonitor(),
            rollouts=_rollouts(settings, services),
            weights=weights,
            source=_source(settings, services, view, rules),
            evaluator=_evaluator(settings, services, view),
        )
        main.log.write(
            "start",
            step,
            incarnation=incarnation,
            steps=settings.training.steps,
            reward=settings.reward,
            labels=len(view.problems.answers or ()),
        )
        for row in read_member(settings.member_dir).steps:
            main.signs(row["step"], row)
        return main

    def evaluate(self, step: int) -> Accuracy:
        assert self.evaluator is not None
        with service_errors(self.services.lease):
            return self.evaluator.run_at(step)

    def signs(self, step: int, record: dict[str, float]) -> list[Sign]:
        """Signs of collapse that appear with a step's record."""
        return self.collapse.observe(
            StepSummary(
                step=step,
                reward_spread=record.get("reward/group_std") if self.source is not None else None,
                vote_share=record.get("votes/own_share"),
                length=record.get("rollouts/tokens"),
                entropy=record.get("entropy"),
                concentration=record.get("votes/concentration"),
            )
        )


def _rollouts(settings: TrainerSettings, services: Services) -> JudgeRollouts:
    rollouts = settings.cohort.rollouts
    return JudgeRollouts(
        judge=services.own,
        member=settings.member,
        run=settings.run,
        incarnation=services.lease.incarnation,
        n=rollouts.n,
        sampling=Sampling(max_tokens=rollouts.max_tokens, temperature=rollouts.temperature),
        task=settings.cohort.problems.task,
        limits=services.info.limits,
        vocab_size=services.info.tokenizer.vocab_size,
        deadline_s=settings.training.service_deadline_s,
    )


def _weights(settings: TrainerSettings, services: Services) -> WeightsPush:
    cohort, member = settings.cohort, settings.member
    publisher = Publisher(
        root=settings.weights,
        run=settings.run,
        member=member,
        incarnation=services.lease.incarnation,
        dtypes=partial(served_dtypes, cohort.model_path(member), cohort.members[member].revision),
    )
    return WeightsPush(services.own, publisher, settings.training.service_deadline_s)


def _source(settings: TrainerSettings, services: Services, view: MemberView, rules: Rules) -> Source | None:
    if settings.reward in INTRINSIC:
        return None
    if settings.reward == "self":
        return OwnVote(rules)
    if settings.reward == "truth":
        return Truth(rules, view.problems.answer)
    teachers = {name: _teacher(name, settings, services, view) for name in settings.teachers}
    return Collective(teachers, rules) if settings.reward == "collective" else PeerVotes(teachers, rules)


def _teacher(name: str, settings: TrainerSettings, services: Services, view: MemberView) -> Teacher:
    vote = settings.cohort.vote
    return Teacher(
        name=name,
        judge=services.teachers[name],
        run=settings.run,
        task=settings.cohort.problems.task,
        prompt=view.prompt,
        options=view.options,
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


def _evaluator(settings: TrainerSettings, services: Services, view: MemberView) -> Evaluator | None:
    cohort, training = settings.cohort, settings.training
    if cohort.problems.heldout is None:
        return None
    return Evaluator(
        judge=services.own,
        run=settings.run,
        incarnation=services.lease.incarnation,
        problems=load_heldout(cohort)[: training.eval_limit],
        prompt=view.format,
        task=cohort.problems.task,
        options=cohort.problems.options,
        samples=training.eval_samples,
        max_tokens=cohort.rollouts.max_tokens,
        temperature=cohort.rollouts.temperature,
        limits=services.info.limits,
        deadline_s=training.service_deadline_s,
    )
