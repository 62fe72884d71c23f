"""The words of the queue: what goes in, what is held, what comes out."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ENDED",
    "DeadItem",
    "Depth",
    "Item",
    "JobId",
    "Lease",
    "Outcome",
    "QueueFull",
    "QueueSettings",
    "SideWrite",
    "State",
    "Ticket",
]

State = Literal["queued", "running", "done", "dead", "cancelled", "gone"]
ENDED: frozenset[str] = frozenset({"done", "dead", "cancelled", "gone"})
DeadReason = Literal["failed", "rejected", "lapsed"]


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How long and how often. Times are in seconds.

    `lease_s`: how long a worker may be silent before others take its items; it renews every third of it.
    `max_failures`: the failure with this number is the last. `max_lapses`: likewise for vanished workers.
    `suspect_after`: an item with this many lapses may be what ends its workers; a worker holds one such at a time.
    `ttl_s`: how long a result is kept, and how long an unfinished item that nobody renews or asks for again; longer
    than any client's deadline. `stream_ttl_s`: how long the streams outlive the last submit or claim.
    `max_depth`: items waiting and running beyond which new ones are refused; None is no limit.
    """

    lease_s: float = 30.0
    max_failures: int = 3
    max_lapses: int = 20
    suspect_after: int = 2
    ttl_s: float = 3600.0
    stream_ttl_s: float = 7 * 86_400.0
    max_depth: int | None = None
    dead_kept: int = 10_000
    consumer_ttl_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("lease_s", "ttl_s", "stream_ttl_s", "consumer_ttl_s"):
            if getattr(self, name) < 0.001:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 0.001 seconds")
        for name in ("max_failures", "max_lapses", "suspect_after", "dead_kept", "max_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")


class JobId:
    """Ids that carry their creation time: 11 hex digits of milliseconds since the epoch, a dash, a nonce."""

    _form = re.compile(r"([0-9a-f]{11})-[0-9a-z]{1,40}")

    @staticmethod
    def new(created: float) -> str:
        """An id for something created now, in seconds since the epoch."""
        return f"{int(created * 1000):011x}-{secrets.token_hex(8)}"

    @classmethod
    def created(cls, job: str) -> float:
        """Seconds since the epoch. Raises ValueError for what is no job id.

        An id older than the retention may have existed (410); a younger one that is not stored never did (404).
        """
        match = cls._form.fullmatch(job)
        if match is None:
            raise ValueError(f"{job!r} is not a job id")
        return int(match[1], 16) / 1000


@dataclass(frozen=True, slots=True)
class Item:
    """Work for one problem. Equal keys are the same work; the payload is opaque to the queue."""

    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ticket:
    """What submit gives back. `result` is there when the work was done already (`state` is `done`)."""

    key: str
    job: str
    created: bool
    state: State
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """An item in the hands of one consumer, until it stops renewing."""

    job: str
    key: str
    entry: str
    consumer: str
    payload: bytes
    failures: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True)
class SideWrite:
    """A key set in the same step as the result, only if that result won and the key does not exist."""

    key: str
    value: bytes
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: `done` with a result, `dead` with an error and its reason, `cancelled`, or `gone`.

    `gone` is a job that Redis does not have (any more): flushed, expired, or its entry deleted by hand. It will never
    end; whoever still wants it submits it again.
    """

    job: str
    state: State
    key: str = ""
    result: bytes | None = None
    error: bytes | None = None
    reason: DeadReason | None = None
    failures: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """Items in the stream: not yet taken, and held by a worker."""

    waiting: int
    pending: int

    @property
    def total(self) -> int:
        return self.waiting + self.pending


@dataclass(frozen=True, slots=True)
class DeadItem:
    """An entry of the dead stream. `at` is in seconds since the epoch."""

    job: str
    key: str
    reason: DeadReason
    error: bytes
    failures: int
    lapses: int
    payload: bytes
    at: float


class QueueFull(Exception):
    """The queue is at its limit; nothing of the request was taken. Try again later (429 with Retry-After)."""

    def __init__(self, namespace: str, depth: int, limit: int) -> None:
        super().__init__(f"queue {namespace} holds {depth} items, its limit is {limit}: try again later")
        self.depth = depth
        self.limit = limit
