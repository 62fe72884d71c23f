"""JobQueue against a model that fits on a page: random sequences of calls by askers and workers must agree with it."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from corl_judge.jobs import Item, JobQueue, Lease, QueueFull, QueueSettings
from corl_judge.redisio import connect
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

T = TypeVar("T")

SETTINGS = QueueSettings(lease_s=3600.0, max_failures=3, max_lapses=4, suspect_after=2, max_depth=6)
KEYS = st.sampled_from(["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
ASKERS = st.sampled_from(["a", "b"])
CONSUMERS = st.sampled_from(["w1", "w2", "w3"])


@dataclass
class Job:
    """`turn` orders the entries; `holder` is the consumer and the turn that it was given, None while waiting."""

    id: str
    key: str
    turn: int
    askers: set[str]
    state: str = "queued"
    holder: tuple[str, int] | None = None
    lapsed: bool = False
    failures: int = 0
    lapses: int = 0
    value: bytes | None = None
    reason: str | None = None


@dataclass
class Held:
    """A lease that the test has in hand, maybe long lost."""

    lease: Lease
    job: Job
    consumer: str
    turn: int

    @property
    def owned(self) -> bool:
        return self.job.state == "running" and self.job.holder == (self.consumer, self.turn)


@dataclass
class Model:
    jobs: dict[str, Job] = field(default_factory=dict)
    by_key: dict[str, Job] = field(default_factory=dict)
    turns: int = 0
    dead: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def open_(self) -> list[Job]:
        return sorted((j for j in self.jobs.values() if j.state in ("queued", "running")), key=lambda j: j.turn)

    def turn(self) -> int:
        self.turns += 1
        return self.turns

    def end(self, job: Job, state: str) -> None:
        job.state, job.holder = state, None
        self.counts[state] += 1

    def bury(self, job: Job, reason: str, value: bytes) -> None:
        job.reason, job.value = reason, value
        self.dead.append((job.id, reason))
        self.end(job, "dead")

    def claim(self, consumer: str, count: int) -> list[Job]:
        taken: list[Job] = []
        suspects = 1
        for job in [j for j in self.open_() if j.lapsed]:
            if len(taken) == count:
                return taken
            lapses = job.lapses + 1
            if lapses >= SETTINGS.max_lapses:
                job.lapses = lapses
                self.counts["lapsed"] += 1
                self.bury(job, "lapsed", b"")
            elif lapses < SETTINGS.suspect_after or suspects:
                suspects -= lapses >= SETTINGS.suspect_after
                job.lapses, job.lapsed = lapses, False
                self.counts["lapsed"] += 1
                taken.append(job)
        taken += [j for j in self.open_() if j.state == "queued"][: count - len(taken)]
        for job in taken:
            job.state, job.holder = "running", (consumer, job.turn)
        return taken


class QueueMachine(RuleBasedStateMachine):
    url = ""
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.loop = asyncio.new_event_loop()
        self.redis = connect(self.url)
        self.namespace = f"corl-test:model:{uuid.uuid4().hex}"

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @property
    def queue(self) -> JobQueue:
        """A new one for each call, as if every call came from a process of its own."""
        return JobQueue(self.redis, self.namespace, SETTINGS)

    def teardown(self) -> None:
        self.run(self.redis.aclose())
        self.loop.close()

    # Askers

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), asker=ASKERS)
    def submit(self, keys: list[str], asker: str) -> None:
        model = self.model
        joinable = {key for key, job in model.by_key.items() if job.state in ("queued", "running", "done")}
        call = self.queue.submit_many([Item(key, key.encode()) for key in keys], asker=asker)
        if len(model.open_()) >= (SETTINGS.max_depth or 0) and not joinable.issuperset(keys):
            with pytest.raises(QueueFull):
                self.run(call)
            return
        for key, ticket in zip(keys, self.run(call), strict=True):
            known = model.by_key.get(key)
            if known is not None and known.state in ("queued", "running", "done"):
                assert (ticket.job, ticket.created) == (known.id, False)
                assert ticket.state == known.state
                assert ticket.result == (known.value if known.state == "done" else None)
                if known.state != "done":
                    known.askers.add(asker)
            else:
                assert ticket.created
                assert ticket.job not in model.jobs
                model.by_key[key] = model.jobs[ticket.job] = Job(ticket.job, key, model.turn(), {asker})
                model.counts["submitted"] += 1

    @rule(key=KEYS, asker=ASKERS)
    def cancel(self, key: str, asker: str) -> None:
        job = self.model.by_key.get(key)
        if job is None:
            assert self.run(self.queue.find([key])) == [None]
            return
        [state] = self.run(self.queue.cancel([job.id], asker=asker))
        if job.state in ("queued", "running") and asker in job.askers:
            job.askers.discard(asker)
            if not job.askers:
                self.model.end(job, "cancelled")
        assert state == job.state

    # Workers

    @rule(target=leases, consumer=CONSUMERS, count=st.integers(1, 4))
    def claim(self, consumer: str, count: int) -> Any:
        leases = self.run(self.queue.claim(consumer, count))
        jobs = self.model.claim(consumer, count)
        assert [(lease.job, lease.key, lease.payload, lease.failures, lease.lapses) for lease in leases] == [
            (job.id, job.key, job.key.encode(), job.failures, job.lapses) for job in jobs
        ]
        return multiple(*(Held(lease, job, consumer, job.turn) for lease, job in zip(leases, jobs, strict=True)))

    @rule(held=leases, value=st.binary(max_size=8))
    def complete(self, held: Held, value: bytes) -> None:
        job = held.job
        by = f"{held.consumer} {held.turn}".encode()
        won = self.run(self.queue.complete(held.lease, value))
        if job.state in ("queued", "running"):
            assert won
            job.value, job.reason = value, by.decode()
            self.model.end(job, "done")
        elif job.state == "done" and job.reason == by.decode():
            assert won  # its own result, sent again
        else:
            assert not won
            self.model.counts["late"] += 1

    @rule(held=leases, final=st.booleans())
    def fail(self, held: Held, final: bool) -> None:
        state = self.run(self.queue.fail(held.lease, b"error", final=final))
        if not held.owned:
            assert state is None
            return
        job = held.job
        job.failures += 1
        self.model.counts["failed"] += 1
        if final or job.failures >= SETTINGS.max_failures:
            self.model.bury(job, "rejected" if final else "failed", b"error")
        else:
            self.requeue(job)
        assert state == job.state

    @rule(held=leases, infrastructure=st.booleans())
    def give_back(self, held: Held, infrastructure: bool) -> None:
        queue = self.queue
        state = self.run(
            queue.fail(held.lease, b"fault", infrastructure=True) if infrastructure else queue.release(held.lease)
        )
        assert state == ("queued" if held.owned else None)
        if held.owned:
            self.requeue(held.job)

    @rule(held=leases)
    def lapse(self, held: Held) -> None:
        assert self.run(self.queue.lapse(held.lease)) == ("queued" if held.owned else None)
        if held.owned:
            held.job.lapsed = True

    @rule(held=leases)
    def renew(self, held: Held) -> None:
        lost = self.run(self.queue.renew([held.lease]))
        assert lost == (set() if held.owned else {held.lease})
        if held.owned:
            held.job.lapsed = False

    def requeue(self, job: Job) -> None:
        job.state, job.holder, job.lapsed, job.turn = "queued", None, False, self.model.turn()

    # What must always agree

    @invariant()
    def all_agree(self) -> None:
        jobs = list(self.model.jobs.values())
        ids = [job.id for job in jobs]
        queue = self.queue

        async def look() -> Any:
            return await asyncio.gather(
                queue.states(ids), queue.result(ids), queue.depth(), queue.dead(), queue.stats()
            )

        states, outcomes, depth, dead, counts = self.run(look())
        assert states == [job.state for job in jobs]
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.state in ("queued", "running"):
                assert outcome is None
                continue
            assert (outcome.state, outcome.failures, outcome.lapses) == (job.state, job.failures, job.lapses)
            if job.state == "done":
                assert outcome.result == job.value
            elif job.state == "dead":
                assert outcome.reason == job.reason
        assert depth.waiting == states.count("queued")
        assert depth.pending == states.count("running")
        assert [(item.job, item.reason) for item in reversed(dead)] == self.model.dead
        assert {name: n for name, n in counts.items() if n} == {n: c for n, c in self.model.counts.items() if c}


def test_the_queue_agrees_with_the_model(redis_url: str) -> None:
    class Machine(QueueMachine):
        url = redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
