"""Handing published weights to the judge: announce, wait until a replica serves them, delete what nobody needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corl.wire import WeightsStatus, WeightsTag, WeightsUpdate
from corl_trainer.publish import Publisher
from corl_trainer.stops import ServiceGone

if TYPE_CHECKING:
    import torch

    from corl.client import JudgeClient

__all__ = ["Pushed", "WeightsPush"]

logger = logging.getLogger(__name__)
LONGEST_WAIT_S = 30.0
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Pushed:
    """One version handed over: bytes of its files, seconds to write them, seconds until a replica served them."""

    size: int
    write_s: float
    reload_s: float

    def metrics(self) -> dict[str, float]:
        return {
            "publish/bytes": float(self.size),
            "publish/write_seconds": self.write_s,
            "publish/reload_seconds": self.reload_s,
        }


@dataclass(frozen=True)
class WeightsPush:
    """On the main rank. `push` returns once a replica of the member's judge serves the new version."""

    judge: JudgeClient
    publisher: Publisher
    deadline_s: float

    def push(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], tied: Mapping[str, str]) -> Pushed:
        """Raises StorageFailed, JudgeError, or ServiceGone if the judge cannot load them."""
        begun = time.perf_counter()
        uri, manifest = self.publisher.write(version, tensors, tied)
        written = time.perf_counter()
        tag = WeightsTag(incarnation=manifest.incarnation, version=version, digest=manifest.state_digest)
        update = WeightsUpdate(
            run=self.publisher.run, incarnation=tag.incarnation, version=version, digest=tag.digest, uri=uri
        )
        self.judge.put_weights(update, deadline_s=self.deadline_s)
        status = self._loaded(tag)
        served = time.perf_counter()
        if retired := self.publisher.retire(status):
            logger.debug("deleted the published weights %s", ", ".join(retired))
        return Pushed(sum(file.bytes for file in manifest.files), written - begun, served - written)

    def _loaded(self, tag: WeightsTag) -> WeightsStatus:
        end = time.monotonic() + self.deadline_s
        while True:
            left = end - time.monotonic()
            status = self.judge.weights(
                version=tag.version, wait_s=max(0.0, min(LONGEST_WAIT_S, left)), deadline_s=max(1.0, left)
            )
            if any(replica.loaded == tag for replica in status.replicas):
                return status
            failed = [r for r in status.replicas if r.state == "failed" and r.reload_error]
            # An error that stands while these weights are still desired is of weights before them.
            if failed and status.desired != tag:
                raise ServiceGone(
                    f"judge {self.publisher.member!r} could not load version {tag.version}: {failed[0].reload_error}"
                )
            if left <= 0:
                seen = ", ".join(
                    f"{r.id} {r.state} {r.loaded.label() if r.loaded else 'nothing'}" for r in status.replicas
                )
                raise ServiceGone(
                    f"judge {self.publisher.member!r} did not load version {tag.version} within {self.deadline_s:g} s "
                    f"(replicas: {seen or 'none alive'})"
                )
            time.sleep(min(PAUSE_S, left))  # the judge answers at once while a replica has an error
