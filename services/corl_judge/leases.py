"""Trainer leases and incarnations: who may write, and whether a vote is about to be filed.

An incarnation is a number that no two starts of a member's trainer share and that only grows. Fencing with it is what
keeps a trainer that was paused, replaced and woken again from writing (Kleppmann 2016, "How to do distributed
locking"). All times are Redis's own, so replicas' clocks do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corl.wire import TrainerLease, TrainerUpdate
from corl_judge.errors import Conflict

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["Leases", "Seen"]

KEEP_S = 7 * 86_400

# KEYS: counter, lease. ARGV: incarnation ('' for a new trainer), step, ttl in ms, seconds kept.
# A flushed Redis knows nothing: a trainer that shows its incarnation is believed and the counter catches up.
_RENEW = """
local known = tonumber(redis.call('HGET', KEYS[2], 'incarnation') or '0')
local given = ARGV[1]
local mine
if given == '' then
  mine = redis.call('INCR', KEYS[1])
  if mine <= known then mine = known + 1; redis.call('SET', KEYS[1], mine) end
else
  mine = tonumber(given)
  if mine < known then return {0, known} end
  if mine > tonumber(redis.call('GET', KEYS[1]) or '0') then redis.call('SET', KEYS[1], mine) end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[2], 'incarnation', mine, 'step', ARGV[2], 'until', now + tonumber(ARGV[3]))
redis.call('EXPIRE', KEYS[2], ARGV[4])
return {1, mine}
"""

# KEYS: lease, first asked. ARGV: seconds kept. What is known of a run's trainer, and since when it is asked for.
_SEEN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = redis.call('HMGET', KEYS[1], 'incarnation', 'step', 'until')
if lease[1] then return {lease[1], lease[2], lease[3] - now, 0} end
redis.call('SET', KEYS[2], now, 'NX', 'EX', ARGV[1])
return {'', '', '', now - tonumber(redis.call('GET', KEYS[2]))}
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """`incarnation` is None if no trainer of the run was ever seen; then `asked_s` says since when it is asked for."""

    incarnation: int | None = None
    step: int | None = None
    live: bool = False
    asked_s: float = 0.0


class Leases:
    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # the client's own types are unions over its options
        self._ns = namespace
        self._renew = redis.register_script(_RENEW)
        self._seen = redis.register_script(_SEEN)

    async def renew(self, update: TrainerUpdate) -> TrainerLease:
        """Take or renew the lease. Raises Conflict (fenced) for a lower incarnation than the run's current one."""
        given = "" if update.incarnation is None else str(update.incarnation)
        accepted, incarnation = await self._renew(
            keys=[f"{self._ns}:incarnation", f"{self._ns}:trainer:{update.run}"],
            args=[given, update.step, max(1, int(update.ttl_s * 1000)), KEEP_S],
        )
        if not accepted:
            raise _fenced(update.run, int(given), incarnation)
        return TrainerLease(run=update.run, incarnation=incarnation, step=update.step, ttl_s=update.ttl_s)

    async def fence(self, run: str, incarnation: int) -> None:
        """Raises Conflict (fenced) if the run has a newer trainer than `incarnation`."""
        current = await self._redis.hget(f"{self._ns}:trainer:{run}", "incarnation")
        if current is not None and incarnation < int(current):
            raise _fenced(run, incarnation, int(current))

    async def seen(self, run: str) -> Seen:
        incarnation, step, left, asked = await self._seen(
            keys=[f"{self._ns}:trainer:{run}", f"{self._ns}:asked:{run}"], args=[KEEP_S]
        )
        if not incarnation:
            return Seen(asked_s=int(asked) / 1000)
        return Seen(int(incarnation), int(step), int(left) > 0)


def _fenced(run: str, given: int, current: int) -> Conflict:
    return Conflict(
        f"incarnation {given} of run {run!r} was replaced by {current}: another trainer of this member has "
        "started; stop",
        kind="fenced",
    )
