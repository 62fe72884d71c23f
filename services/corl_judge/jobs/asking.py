"""Submit work and see it through: what a request handler does with its items."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from corl_judge.jobs.queue import JobQueue
from corl_judge.jobs.types import Item, Outcome

__all__ = ["ask"]


async def ask(
    queue: JobQueue,
    items: Sequence[Item],
    *,
    asker: str,
    deadline_s: float,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Outcome]:
    """The outcome of each item by its key, `done` or `dead`; items that have none by `deadline_s` are left out.

    A job that is gone (a flushed Redis) or was cancelled by others is submitted again. `on_progress` is told how many
    items have ended. If this task is cancelled, `asker` is detached, so that work nobody waits for stops; after the
    deadline it is not, since a client that asks again with the same keys joins the work under way.

    Raises QueueFull if the first submit is refused.
    """
    deadline = time.monotonic() + deadline_s
    ttl_s = max(queue.settings.ttl_s, 2 * deadline_s)
    missing = {item.key: item for item in items}
    ended: dict[str, Outcome] = {}
    jobs: dict[str, str] = {}
    try:
        while missing:
            tickets = await queue.submit_many(list(missing.values()), asker=asker, ttl_s=ttl_s)
            jobs = {ticket.job: ticket.key for ticket in tickets}
            open_ = dict(jobs)
            for ticket in tickets:
                if ticket.result is not None and ticket.job in open_:
                    del open_[ticket.job]
                    ended[ticket.key] = Outcome(ticket.job, "done", ticket.key, result=ticket.result)
            while open_:
                outcomes = await queue.wait(list(open_), timeout_s=deadline - time.monotonic(), at_least=1)
                if not outcomes:
                    return ended
                for job, outcome in outcomes.items():
                    key = open_.pop(job)
                    if outcome.state in ("done", "dead"):
                        ended[key] = outcome
                if on_progress is not None:
                    on_progress(len(ended))
            missing = {key: item for key, item in missing.items() if key not in ended}
        return ended
    except asyncio.CancelledError:
        unfinished = [job for job, key in jobs.items() if key not in ended]
        if unfinished:
            await asyncio.shield(_detach(queue, unfinished, asker))
        raise


async def _detach(queue: JobQueue, jobs: Sequence[str], asker: str) -> None:
    with contextlib.suppress(RedisError, OSError, TimeoutError):  # else the work goes on and its result expires
        await asyncio.wait_for(queue.cancel(jobs, asker=asker), 5.0)
