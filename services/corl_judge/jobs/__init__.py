"""Jobs in Redis: a work queue for replicas that come and go, in which nothing is lost and nothing is done twice."""

from corl_judge.jobs.asking import ask
from corl_judge.jobs.queue import JobQueue, wait_for_work
from corl_judge.jobs.records import IdempotencyConflict, JobRecord, JobRecords, RecordStatus
from corl_judge.jobs.types import (
    DeadItem,
    Depth,
    Item,
    JobId,
    Lease,
    Outcome,
    QueueFull,
    QueueSettings,
    SideWrite,
    State,
    Ticket,
)
from corl_judge.jobs.waiter import Waiter, Watch

__all__ = [
    "DeadItem",
    "Depth",
    "IdempotencyConflict",
    "Item",
    "JobId",
    "JobQueue",
    "JobRecord",
    "JobRecords",
    "Lease",
    "Outcome",
    "QueueFull",
    "QueueSettings",
    "RecordStatus",
    "SideWrite",
    "State",
    "Ticket",
    "Waiter",
    "Watch",
    "ask",
    "wait_for_work",
]
