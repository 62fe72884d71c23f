"""Why a trainer process ends, as exceptions and exit codes.

| code | meaning | start again? |
| --- | --- | --- |
| 0 | all steps done, final model written | no |
| 1 | an unexpected error, with its traceback | after looking at it |
| 2 | the command line or the cohort file is wrong | after mending it |
| 3 | stopped on request (SIGTERM, SIGINT): the step was finished and checkpointed | to go on |
| 4 | a service stayed away or answered wrongly: checkpointed | once it is back |
| 5 | a newer trainer of this member took over | no |
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode", "Fenced", "ServiceGone", "SettingsError", "StoppedNow", "StorageFailed", "TrainerStop"]


class ExitCode(IntEnum):
    DONE = 0
    ERROR = 1
    USAGE = 2
    REQUESTED = 3
    SERVICE_GONE = 4
    FENCED = 5


class TrainerStop(Exception):
    """Training cannot go on; the message says why and what to do. Raised on every rank at the same point."""

    code = ExitCode.ERROR


class ServiceGone(TrainerStop):
    """A service did not answer within the deadline, or answered what must not be trained on."""

    code = ExitCode.SERVICE_GONE


class StorageFailed(TrainerStop):
    """A snapshot or checkpoint could not be written (disk full, no permission)."""

    code = ExitCode.ERROR


class Fenced(TrainerStop):
    """A trainer with a higher incarnation holds the lease of this member."""

    code = ExitCode.FENCED


class StoppedNow(TrainerStop):
    """A second signal: not even the step is finished."""

    code = ExitCode.REQUESTED


class SettingsError(TrainerStop):
    """A setting is wrong; names the field, the value and the remedy."""

    code = ExitCode.USAGE
