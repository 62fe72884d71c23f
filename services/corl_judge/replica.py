"""This process as one replica of its member: loaded weights against desired ones, heartbeat, health, drain.

A reload: new desired weights are noticed -> no more work is taken -> running work finishes -> the engine verifies the
digests, loads, and generates one token -> the new tag is served. Weights that are not what their manifest says
leave the old ones serving, the state `failed`, and the desired weights fall back (unless another live replica serves
them: then this replica waits for newer ones, not ready). An engine in doubt is a dead process: its supervisor starts a
new one, which loads the desired weights before it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from corl.weights import Snapshot, SnapshotError, open_snapshot
from corl.wire import Replica as ReplicaInfo
from corl.wire import ReplicaState, WeightsTag
from corl_judge.engines.base import Engine, EngineDead, EngineError, EngineFacts, WeightsRejected
from corl_judge.errors import Invalid
from corl_judge.fleet import Fleet, Published
from corl_judge.metrics import Metrics
from corl_judge.settings import Settings
from corl_judge.tasks import end
from corl_judge.worker import Gate

__all__ = ["NotServed", "Replica"]

log = logging.getLogger(__name__)

STOP_S = 30.0


class NotServed(Exception):
    """Work for weights that this replica does not serve now, but that are desired: another, or it later, will."""


class Replica:
    """Owns the engine: every generation goes through `serving`, so that no completion mixes versions."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        fleet: Fleet,
        metrics: Metrics,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.engine = engine
        self.fleet = fleet
        self.gate = Gate()
        self.gate.close()
        self.dead: BaseException | None = None
        self.facts: EngineFacts | None = None
        self.desired: Published | None = None
        self.state: ReplicaState = "starting"
        self.started_at = time.time()
        self.in_flight = 0
        self._settings = settings
        self._metrics = metrics
        self._on_death = on_death
        self._loaded: Published | WeightsTag | None = None
        self._reload_error: str | None = None
        self._rejected: WeightsTag | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._phase_since = time.monotonic()
        self._reload_since: float | None = None
        self._progress = time.monotonic()
        self._draining = False
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    # Start and end ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine, load the desired weights, then serve. Raises EngineError if the engine does not start."""
        self._tasks.append(asyncio.create_task(self._beat(), name="heartbeat"))
        self.facts = await self.engine.start()
        self._loaded = self.engine.version
        self._progress = time.monotonic()
        log.info("engine %s %s started with weights %s", self.facts.name, self.facts.version, self.loaded.label())
        self._tasks.append(asyncio.create_task(self._follow(), name="follow-weights"))
        self._tasks.append(asyncio.create_task(self._watch_engine(), name="watch-engine"))
        self._tasks.append(asyncio.create_task(self._await_death(), name="await-death"))

    async def drain(self) -> None:
        """Take no more work; `readyz` turns false."""
        self._draining = True
        self._enter("draining")
        await self._announce()

    async def close(self) -> None:
        await end(self._tasks)
        with contextlib.suppress(RedisError, OSError):
            await self.fleet.withdraw(self.id)
        try:
            await asyncio.wait_for(self.engine.stop(), STOP_S)
        except TimeoutError:
            log.warning("the engine did not stop within %s s", STOP_S)

    # What others ask -------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> WeightsTag:
        """The weights that answer now. Raises RuntimeError before the engine has started."""
        if self._loaded is None:
            raise RuntimeError("the engine has not started")
        return self._loaded.tag if isinstance(self._loaded, Published) else self._loaded

    @property
    def started(self) -> bool:
        """The first load is done, the desired weights included."""
        return self.state not in ("starting",) and self._loaded is not None

    @property
    def live(self) -> bool:
        """The engine answers, or is within the deadline of a start, a reload or a slow generation."""
        return self.dead is None and not self._stuck()

    @property
    def ready(self) -> bool:
        """Accepting: loaded, not past a reload deadline, not draining."""
        if self.dead is not None or self._draining or not self.started:
            return False
        return not self._stuck() and not (self.state == "failed" and not self.gate.is_open)

    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            id=self.id,
            member=self._settings.member,
            state=self.state,
            loaded=None if self._loaded is None else self.loaded,
            in_flight=self.in_flight,
            started_at=self.started_at,
            reload_error=self._reload_error,
        )

    async def weights(self) -> tuple[WeightsTag, WeightsTag]:
        """(the weights that new work is for, the newest ones that any replica served)."""
        view = await self.fleet.view()
        wanted = self.loaded if view.desired is None else view.desired.tag
        return wanted, view.served or self.loaded

    def check(self, snapshot: Snapshot) -> None:
        """Whether a snapshot can be this model's, without reading its tensors. Raises Invalid."""
        try:
            self.engine.check_weights(snapshot)
        except WeightsRejected as error:
            raise Invalid.field("uri", str(error), str(snapshot.folder)) from error

    def look(self) -> None:
        """Look up the desired weights now."""
        self._wake.set()

    async def catch_up(self, wanted: WeightsTag) -> None:
        """Work for other weights than are loaded may be for newer ones than are known here: look before judging it."""
        if wanted.digest != self.loaded.digest:
            self.desired = (await self.fleet.view()).desired

    @contextlib.contextmanager
    def serving(self, wanted: WeightsTag) -> Iterator[WeightsTag]:
        """Hold the weights while work asked for under `wanted` runs; yields the tag that answers.

        Work for weights that are desired but not loaded is refused (NotServed). Work for weights that are desired no
        longer is done with the present ones: the answer carries its tag, and the asker decides.
        """
        loaded = self.loaded
        desired = loaded if self.desired is None else self.desired.tag
        if not self.gate.is_open or (wanted.digest == desired.digest and wanted.digest != loaded.digest):
            self.look()
            raise NotServed(f"{wanted.label()} is not loaded here")
        self.in_flight += 1
        self._idle.clear()
        self._metrics.in_flight.set(self.in_flight)
        try:
            yield loaded
            self._progress = time.monotonic()
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.set(self.in_flight)
            if self.in_flight == 0:
                self._idle.set()

    def die(self, error: BaseException) -> None:
        """The engine cannot go on, nor can this process."""
        if self.dead is None:
            self.dead = error
            self.gate.close()
            self._metrics.engine_up.set(0)
            traced = None if isinstance(error, EngineError) else error
            log.critical("the engine cannot go on: %s", error, exc_info=traced)
            self._on_death(error)

    async def wait_changed(self, timeout_s: float) -> None:
        """Until this replica's state changes, or the time has passed."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)

    # Reload ----------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._wake.clear()
            try:
                self.desired = (await self.fleet.view()).desired
                await self._towards(self.desired)
            except (RedisError, OSError) as error:
                log.warning("cannot look up the desired weights: %s", error)
            except EngineDead as error:
                self.die(error)
                return
            except Exception as error:
                self.die(error)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._settings.poll_s)

    async def _towards(self, desired: Published | None) -> None:
        if desired is None:
            # Never published, or a Redis that lost its memory: what is loaded is what is desired.
            if isinstance(self._loaded, Published):
                await self.fleet.desire(self._loaded)
                await self.fleet.mark_served(self.loaded)
            self._open()
        elif desired.tag == self.loaded:
            self._open()
        elif desired.tag == self._rejected:
            return
        elif desired.tag.digest == self.loaded.digest:
            await self._serve(desired, relabel=True)
        else:
            await self._reload(desired)
        self._metrics.weights(self.loaded, None if desired is None else desired.tag)

    async def _reload(self, desired: Published) -> None:
        self.gate.close()
        if self._reload_since is None:
            self._reload_since = time.monotonic()
        if self.state != "starting":
            self._enter("draining_for_reload")
            await self._announce()
        log.info("reloading: %s -> %s from %s", self.loaded.label(), desired.tag.label(), desired.uri)
        try:
            snapshot, _ = await asyncio.gather(asyncio.to_thread(self._opened, desired), self._idle.wait())
            if (await self.fleet.view()).desired != desired:
                self.look()
                return
            if self.state != "starting":
                self._enter("loading")
                await self._announce()
            self._phase_since = time.monotonic()
            await self.engine.load_weights(snapshot, desired.tag)
            await self.engine.probe()
        except (SnapshotError, WeightsRejected) as error:
            await self._reject(desired, str(error))
            return
        except EngineError as error:
            raise EngineDead(f"the engine failed while it loaded {desired.tag.label()}: {error}") from error
        await self._serve(desired)

    def _opened(self, desired: Published) -> Snapshot:
        root = self._settings.weights
        if root is None:
            raise SnapshotError("this judge has no weights folder: start it with --weights")
        snapshot = open_snapshot(desired.uri, Path(root))
        if snapshot.manifest.state_digest != desired.tag.digest:
            raise SnapshotError(f"{snapshot.folder}: the manifest's digest is not {desired.tag.digest}")
        return snapshot

    async def _serve(self, published: Published, *, relabel: bool = False) -> None:
        await self.fleet.mark_served(published.tag)
        if relabel:
            self.engine.relabel(published.tag)
        self._loaded = published
        self._reload_error = None
        self._rejected = None
        self._progress = time.monotonic()
        if self._reload_since is not None:
            self._metrics.reload_seconds.observe(time.monotonic() - self._reload_since)
        self._metrics.reloads.labels("relabelled" if relabel else "loaded").inc()
        log.info("serving %s%s", published.tag.label(), " (same digest: relabelled)" if relabel else "")
        self._open()
        await self._announce()

    async def _reject(self, desired: Published, error: str) -> None:
        log.error("weights %s rejected: %s", desired.tag.label(), error)
        self._metrics.reloads.labels("failed").inc()
        self._reload_error = error
        self._reload_since = None
        others = [r for r in await self.fleet.replicas() if r.id != self.id and r.loaded == desired.tag]
        fallback = desired if others else await self.fleet.revert(desired)
        self.desired = fallback
        if fallback == desired:
            self._rejected = desired.tag
            log.error("another replica serves %s: this one takes no work until newer weights come", desired.tag.label())
        if self.state != "starting":
            self._enter("failed")
        await self._announce()
        self.look()

    # Watch -----------------------------------------------------------------------------------------------------------

    async def _await_death(self) -> None:
        cause = await self.engine.died()
        self.die(EngineDead(cause))

    async def _watch_engine(self) -> None:
        """Try a generation when none completed for a while. Slow is not dead: it has an item's whole deadline."""
        while True:
            await asyncio.sleep(self._settings.probe_every_s)
            busy = not self.gate.is_open or time.monotonic() - self._progress < self._settings.probe_every_s
            if busy:
                continue
            started = time.monotonic()
            probe = asyncio.create_task(self.engine.probe())
            try:
                while not probe.done():
                    await asyncio.wait({probe}, timeout=self._settings.probe_every_s)
                    if (
                        not probe.done()
                        and time.monotonic() - max(started, self._progress) > self._settings.item_deadline_s
                    ):
                        probe.cancel()
                        raise EngineDead(f"no token and no completed item for {self._settings.item_deadline_s} s")
                await probe
                self._progress = time.monotonic()
                self._metrics.engine_up.set(1)
            except EngineDead as error:
                self.die(error)
                return
            except EngineError as error:
                log.warning("the probe failed: %s", error)
            finally:
                probe.cancel()

    def _stuck(self) -> bool:
        passed = time.monotonic() - self._phase_since
        if self.state == "loading":
            return passed > self._settings.reload_deadline_s
        if self.state == "draining_for_reload":
            return passed > self._settings.item_deadline_s + self._settings.reload_deadline_s
        return False

    async def _beat(self) -> None:
        """Say what this replica is: regularly, and at once when its state changes."""
        while True:
            self._news.clear()
            await self._announce()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._settings.heartbeat_s)

    async def _announce(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self.fleet.announce(self.info())

    def _open(self) -> None:
        self._reload_since = None
        if self.state != "ready" and not self._draining:
            # A rejected version stays visible as `failed` until newer weights are served; the old ones serve meanwhile.
            self._enter("failed" if self._reload_error is not None else "ready")
        if not self._draining and self.dead is None:
            self._metrics.engine_up.set(1)
            self.gate.open()

    def _enter(self, state: ReplicaState) -> None:
        if self._draining:
            state = "draining"
            self.gate.close()
        if state != self.state:
            self.state = state
            self._phase_since = time.monotonic()
            self._news.set()
        self._changed.set()
        self._changed = asyncio.Event()
