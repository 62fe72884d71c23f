"""Work that the main rank does for all, so that every rank goes on or stops together.

Talking to services is the main rank's: the others wait in a broadcast. If the main rank raised past that broadcast,
they would wait until its timeout; so an error is broadcast in place of the result, and raised everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from corl_trainer.stops import Fenced, ServiceGone, SettingsError, StorageFailed, TrainerStop

__all__ = ["Ranks", "any_rank", "main_does", "main_only", "share_stop"]

T = TypeVar("T")
STOPS: dict[str, type[TrainerStop]] = {
    stop.__name__: stop for stop in (ServiceGone, StorageFailed, Fenced, SettingsError, TrainerStop)
}


class Ranks(Protocol):
    """accelerate's PartialState or Accelerator."""

    @property
    def num_processes(self) -> int: ...

    @property
    def process_index(self) -> int: ...

    @property
    def is_main_process(self) -> bool: ...


def main_does(ranks: Ranks, work: Callable[[], T]) -> T:
    """Run `work` on the main rank only; its result, or its error, on every rank. A collective: call it on every rank.

    On the main rank an error is raised as it is; on the others a TrainerStop as it is, anything else as TrainerStop.
    """
    if ranks.num_processes == 1:
        return work()
    from accelerate.utils import broadcast_object_list

    error: BaseException | None = None
    box: list[Any] = [None]
    if ranks.is_main_process:
        try:
            box = [(True, work())]
        except BaseException as raised:
            error = raised
            box = [(False, _portable(raised))]
    broadcast_object_list(box, from_process=0)
    if error is not None:
        raise error
    done, value = box[0]
    if not done:
        raise _rebuilt(value)
    result: T = value
    return result


def main_only(ranks: Ranks, work: Callable[[], T]) -> T | None:
    """As `main_does`, with the result left on the main rank and None on the others."""
    kept: list[T] = []
    main_does(ranks, lambda: kept.append(work()))
    return kept[0] if kept else None


def share_stop(ranks: Ranks, error: Exception | None) -> None:
    """Raise on every rank if any rank has an error: its own, or else the lowest rank's. A collective."""
    if ranks.num_processes == 1:
        if error is not None:
            raise error
        return
    from accelerate.utils import gather_object

    found = [other for other in gather_object([None if error is None else _portable(error)]) if other is not None]
    if error is not None:
        raise error
    if found:
        raise _rebuilt(found[0])


def any_rank(ranks: Ranks, flag: bool) -> bool:
    """Whether the flag is set on any rank. A collective: signals reach ranks at different steps."""
    if ranks.num_processes == 1:
        return flag
    from accelerate.utils import gather_object

    return any(gather_object([flag]))


def _portable(error: BaseException) -> tuple[str, str]:
    name = type(error).__name__
    return (name if name in STOPS else "TrainerStop", str(error) or name)


def _rebuilt(portable: tuple[str, str]) -> TrainerStop:
    name, message = portable
    return STOPS[name](message)
