"""The trainer's lease on its member: every ttl/3 a thread tells the judge that the trainer lives, and at which step.

The first answer carries the incarnation, under which weights are published. A judge that has given a higher one since
refuses ours (409): then this trainer must stop, for two of them would overwrite each other's weights.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from corl.errors import JudgeConflict, JudgeError
from corl.wire import TrainerUpdate
from corl_trainer.stops import Fenced

if TYPE_CHECKING:
    from corl.client import JudgeClient

__all__ = ["TrainerLease"]

logger = logging.getLogger(__name__)


class TrainerLease:
    """`start` takes the lease (and raises what the client raises); `advance` reports a step; `check` raises Fenced."""

    def __init__(self, judge: JudgeClient, run: str, step: int, *, ttl_s: float = 30.0, deadline_s: float) -> None:
        self._judge = judge
        self._run = run
        self._step = step
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._fenced: str | None = None
        self._thread = threading.Thread(target=self._beat, name="corl-lease", daemon=True)
        self.incarnation = 0

    def start(self, above: int = 0) -> int:
        """The incarnation, higher than `above`: that of the newest weights published, which a judge whose Redis was
        emptied no longer knows."""
        while self.incarnation <= above:
            lease = self._judge.put_trainer(self._update(None), deadline_s=self._deadline_s)
            if lease.incarnation <= self.incarnation:
                raise Fenced(f"the judge gave incarnation {lease.incarnation} after {self.incarnation}: they must grow")
            self.incarnation = lease.incarnation
        self._thread.start()
        return self.incarnation

    def advance(self, step: int) -> None:
        """Report the step without waiting for the answer."""
        self._step = step
        self._wake.set()

    def check(self) -> None:
        if self._fenced is not None:
            raise Fenced(
                f"another trainer has taken over this member ({self._fenced}); this one, incarnation "
                f"{self.incarnation}, stops: run only one trainer a member"
            )

    def confirm(self) -> None:
        """Ask the judge now; raises Fenced, or what the client raises."""
        if self.incarnation:
            try:
                self._judge.put_trainer(self._update(self.incarnation), deadline_s=self._ttl_s)
            except JudgeConflict as error:
                self._fenced = str(error)
        self.check()

    def close(self) -> None:
        """Let the lease lapse: peers then stop waiting for this member's votes. Does not wait for the thread, whose
        call ends once the client is closed."""
        self._closed.set()
        self._wake.set()

    def join(self) -> None:
        """Wait for the thread's end, after `close`."""
        if self._thread.is_alive():
            self._thread.join(timeout=self._ttl_s)

    def _update(self, incarnation: int | None) -> TrainerUpdate:
        return TrainerUpdate(run=self._run, step=self._step, ttl_s=self._ttl_s, incarnation=incarnation)

    def _beat(self) -> None:
        while True:
            self._wake.wait(self._ttl_s / 3)
            self._wake.clear()
            if self._closed.is_set():
                return
            try:
                self._judge.put_trainer(self._update(self.incarnation), deadline_s=self._ttl_s / 3)
            except JudgeConflict as error:
                self._fenced = str(error)
                return
            except RuntimeError:  # the client was closed under the call
                if not self._closed.is_set():
                    raise
                return
            except JudgeError as error:
                # It may lapse meanwhile: peers go on with fresh votes, and training itself needs the judge anyway.
                logger.warning("lease: the judge could not be told of step %d: %s", self._step, error)
