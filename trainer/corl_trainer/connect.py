"""The services of one trainer, on its main rank: own judge and teachers ready and known, the lease held."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from corl.client import JudgeClient
from corl.errors import JudgeConflict, JudgeDenied, JudgeError
from corl.wire import ModelInfo
from corl_trainer.lease import TrainerLease
from corl_trainer.publish import newest_incarnation
from corl_trainer.settings import TrainerSettings
from corl_trainer.stops import ServiceGone, SettingsError

__all__ = ["Services", "connect", "service_errors"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    own: JudgeClient
    info: ModelInfo
    teachers: Mapping[str, JudgeClient]
    teacher_infos: Mapping[str, ModelInfo]
    lease: TrainerLease

    def close(self) -> None:
        _close(self.lease, [self.own, *self.teachers.values()])


def connect(settings: TrainerSettings, step: int) -> Services:
    """Wait until own judge and teachers are ready, then take the lease at `step`. Raises ServiceGone."""
    deadline_s = settings.training.service_deadline_s

    def client(name: str) -> JudgeClient:
        return JudgeClient(settings.judges[name], api_key=settings.api_key)

    def ready(name: str, judge: JudgeClient) -> ModelInfo:
        logger.info("waiting for judge %r at %s", name, settings.judges[name])
        info = judge.wait_ready(deadline_s=deadline_s)
        if info.member != name:
            raise SettingsError(
                f"{settings.judges[name]} is the judge of member {info.member!r}, not of {name!r}: "
                f"mend members.{name}.url or --judge {name}=URL"
            )
        return info

    own = client(settings.member)
    teachers = {name: client(name) for name in settings.teachers}
    lease = TrainerLease(own, settings.run, step, deadline_s=deadline_s)
    try:
        with service_errors(lease):
            info = ready(settings.member, own)
            # The lease before the teachers: they may in turn wait for this member's votes.
            lease.start(above=newest_incarnation(settings.weights, settings.run, settings.member))
            infos = {name: ready(name, judge) for name, judge in teachers.items()}
    except BaseException:
        _close(lease, [own, *teachers.values()])
        raise
    return Services(own, info, teachers, infos, lease)


def _close(lease: TrainerLease, clients: Sequence[JudgeClient]) -> None:
    lease.close()
    for client in clients:
        client.close()
    lease.join()


@contextmanager
def service_errors(lease: TrainerLease) -> Iterator[None]:
    """A failed call becomes ServiceGone, or Fenced if a newer trainer is the reason."""
    try:
        yield
    except JudgeConflict as error:
        with suppress(JudgeError):
            lease.confirm()
        raise ServiceGone(str(error)) from error
    except JudgeDenied as error:
        raise SettingsError(f"{error}: set CORL_API_KEY to the judges' key") from error
    except JudgeError as error:
        raise ServiceGone(str(error)) from error
