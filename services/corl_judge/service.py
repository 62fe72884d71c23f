"""One judge process put together: what each part is, in the order in which they start and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from corl_judge.background import QUEUE as REQUESTS
from corl_judge.background import Background
from corl_judge.ballots import Ballots
from corl_judge.compat.coalesce import Coalescer
from corl_judge.engines.base import Engine
from corl_judge.errors import Unavailable
from corl_judge.fleet import Fleet
from corl_judge.grading import Grading
from corl_judge.handler import ItemHandler
from corl_judge.jobs import JobQueue, JobRecords, QueueSettings, Waiter
from corl_judge.judge import Judge
from corl_judge.leases import Leases
from corl_judge.limits import Open
from corl_judge.metrics import Metrics
from corl_judge.redisio import check_redis, connect
from corl_judge.replica import Replica
from corl_judge.sampling import Sampler
from corl_judge.settings import Settings
from corl_judge.tasks import end
from corl_judge.texts import OwnTexts
from corl_judge.votebook import VoteBook
from corl_judge.worker import Worker

__all__ = ["Service"]

log = logging.getLogger(__name__)

BACKGROUND_REQUESTS = 256
"""Background requests that one replica sees through at a time; they only wait for work items."""


class Service:
    """Everything behind the routes. `on_death` is told once when the engine cannot go on: the process should exit."""

    def __init__(
        self, settings: Settings, engine: Engine, on_death: Callable[[BaseException], None] | None = None
    ) -> None:
        if settings.redis is None:
            raise ValueError("settings.redis is None: name a Redis, or start one with corl.localredis")
        self.settings = settings
        self.url = settings.redis.get_secret_value()
        self.redis = connect(self.url, max_connections=64, client_name=f"corl-judge-{settings.member}")
        self.metrics = Metrics()
        self.metrics.observe(engine)
        self.texts = OwnTexts.load(settings)
        ns = settings.namespace
        waiter = Waiter(self.redis)

        def queue(name: str, max_depth: int | None) -> JobQueue:
            times = QueueSettings(lease_s=settings.lease_s, ttl_s=settings.result_ttl_s, max_depth=max_depth)
            return JobQueue(self.redis, f"{ns}:{name}", times, waiter=waiter)

        self.queues = {
            "rollouts": queue("rollouts", settings.max_queued_rollouts),
            "votes": queue("votes", settings.max_queued_votes),
            REQUESTS: queue(REQUESTS, settings.max_queued_rollouts),
        }
        self._waiter = waiter
        self.fleet = Fleet(self.redis, ns, ttl_s=settings.replica_ttl_s)
        self.leases = Leases(self.redis, ns)
        self.book = VoteBook(self.redis, ns, ttl_s=settings.vote_ttl_s)
        self.replica = Replica(settings, engine, self.fleet, self.metrics, self._died)
        self.grading = Grading(settings.grader_processes, settings.grader_deadline_s)
        self.sampler = Sampler(settings.member, self.replica, self.book, self.queues["rollouts"], self.queues["votes"])
        ballots = Ballots(settings, self.replica, self.book, self.leases, self.sampler, self.texts, self.metrics)
        self.judge = Judge(
            settings, self.replica, self.leases, self.book, self.sampler, ballots, self.grading, self.metrics
        )
        self.coalescer = Coalescer(self.judge.scores, settings.item_deadline_s)
        self.records = JobRecords(self.redis, ns, retention_s=settings.result_ttl_s)
        self.background = Background(settings, self.redis, self.records, self.queues[REQUESTS], self.judge)
        handler = ItemHandler(self.replica, self.grading, self.book, self.metrics, deadline_s=settings.item_deadline_s)
        self._workers = [
            Worker(
                {name: self.queues[name] for name in ("rollouts", "votes")},
                handler,
                consumer=self.replica.id,
                capacity=settings.max_problems_in_flight,
                gate=self.replica.gate,
                grace_s=settings.drain_s,
                on_engine_dead=self.replica.die,
            ),
            Worker(
                {REQUESTS: self.queues[REQUESTS]},
                self.background,
                consumer=self.replica.id,
                capacity=BACKGROUND_REQUESTS,
                grace_s=0.0,
            ),
        ]
        self.open = {kind: Open(kind, settings.max_open_requests) for kind in ("rollouts", "scores", "jobs", "weights")}
        self.draining = asyncio.Event()
        self.drained = asyncio.Event()
        self._on_death = on_death
        self._tasks: list[asyncio.Task[Any]] = []
        self.start_error: BaseException | None = None

    async def start(self) -> None:
        """Redis and the grader first, since nothing works without them; the engine starts while probes are answered.

        Raises RedisUnavailable, GradingFailed.
        """
        await check_redis(self.redis, self.url)
        await self.grading.start()
        self._tasks.append(asyncio.create_task(self._start_engine(), name="start-engine"))
        self._tasks.append(asyncio.create_task(self._measure(), name="measure"))

    async def _start_engine(self) -> None:
        try:
            await self.replica.start()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.start_error = error
            self.replica.die(error)
            return
        for worker in self._workers:
            self._tasks.append(asyncio.create_task(worker.run(), name="worker"))

    async def drain(self) -> None:
        """Take nothing new; let running work finish or give it back; then end requests that still wait."""
        if self.draining.is_set():
            return
        log.info("draining")
        self.draining.set()
        await self.replica.drain()
        started = [worker for worker in self._workers if any(t.get_name() == "worker" for t in self._tasks)]
        await asyncio.gather(*(worker.stop() for worker in started))
        self.drained.set()

    async def stop(self) -> None:
        await self.drain()
        await self.coalescer.close()
        await end(self._tasks)
        await self.replica.close()
        self.sampler.close()
        await self.grading.close()
        await self.book.close()
        await self._waiter.aclose()
        await self.redis.aclose()

    def require_started(self) -> None:
        """Raises Unavailable before the engine has facts, after its death, and while draining."""
        if self.replica.dead is not None:
            raise Unavailable(f"the engine is dead: {self.replica.dead}", retry_after=5.0, kind="engine-dead")
        if self.draining.is_set():
            raise Unavailable("this replica is draining", retry_after=1.0, kind="draining")
        if self.replica.facts is None:
            raise Unavailable("the engine is starting", retry_after=2.0, kind="starting")

    def _died(self, error: BaseException) -> None:
        self.draining.set()
        self.drained.set()
        if self._on_death is not None:
            self._on_death(error)

    async def _measure(self) -> None:
        while True:
            for name, queue in self.queues.items():
                with contextlib.suppress(RedisError, OSError):
                    depth = await queue.depth()
                    self.metrics.depth.labels(name, "waiting").set(depth.waiting)
                    self.metrics.depth.labels(name, "running").set(depth.pending)
            await asyncio.sleep(self.settings.heartbeat_s)
