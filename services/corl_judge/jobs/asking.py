"""Submit work and see it through: what a request handler does with its items."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from corl_judge.jobs.queue import JobQueue
from corl_judge.jobs.types import Item, Outcome, QueueFull, Ticket

__all__ = ["ask"]

DETACH_S = 5.0


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
    submitting: asyncio.Task[list[Ticket]] | None = None
    try:
        while missing:
            submitting = asyncio.create_task(queue.submit_many(list(missing.values()), asker=asker, ttl_s=ttl_s))
            tickets = await asyncio.shield(submitting)
            ended |= {t.key: Outcome(t.job, "done", t.key, result=t.result) for t in tickets if t.state == "done"}
            open_ = {t.job: t.key for t in tickets if t.key not in ended}
            with queue.watch(open_) as watch:
                while watch.open:
                    outcomes = await watch.ended(deadline - time.monotonic())
                    if not outcomes:
                        return ended
                    ended |= {open_[job]: o for job, o in outcomes.items() if o.state in ("done", "dead")}
                    if on_progress is not None:
                        on_progress(len(ended))
            missing = {key: item for key, item in missing.items() if key not in ended}
        return ended
    except asyncio.CancelledError:
        if submitting is not None:
            await asyncio.shield(_detach(queue, submitting, asker))
        raise


async def _detach(queue: JobQueue, submitting: asyncio.Task[list[Ticket]], asker: str) -> None:
    """Waits for the submit first: what Redis has read of it cannot be taken back."""
    # Where this fails the work goes on, and its result expires.
    with contextlib.suppress(RedisError, OSError, TimeoutError, QueueFull):
        async with asyncio.timeout(DETACH_S):
            await queue.cancel([ticket.job for ticket in await submitting], asker=asker)
