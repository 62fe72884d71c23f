"""What all replicas of a member agree on, in Redis: the desired weights, the newest served ones, and who is alive.

The desired weights move forward only: within an incarnation to newer versions, and to newer incarnations. They fall
back to the last ones that were served only when the new ones turn out not to be what their manifest says. The served
tag is written before the first answer under it, so that a caller never sees it go backwards, whichever replica answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from corl.wire import Replica, WeightsTag
from corl_judge.errors import Conflict

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["Fleet", "Published", "View"]


class Published(BaseModel):
    """Weights that a trainer published: what they are and where they lie."""

    model_config = ConfigDict(frozen=True)
    tag: WeightsTag
    uri: str
    run: str


@dataclass(frozen=True, slots=True)
class View:
    """`desired` is None until a trainer published, `served` until a replica served what was published."""

    desired: Published | None
    served: WeightsTag | None


# KEYS: desired, the run's trainer lease, incarnation counter. ARGV: incarnation, version, digest, record.
_DESIRE = """
local inc, ver, digest = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local newest = tonumber(redis.call('HGET', KEYS[2], 'incarnation') or '0')
local cur = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'digest', 'record', 'served', 'fallback')
local cinc, cver = tonumber(cur[1] or '0'), tonumber(cur[2] or '-1')
if inc < newest then return {'fenced', newest} end
if inc < cinc then return {'fenced', cinc} end
if inc == cinc then
  if ver < cver then return {'older', cver} end
  if ver == cver then return {digest == cur[3] and 'same' or 'differs', cver} end
end
local fallback = cur[6] or ''
if cur[5] == '1' then fallback = cur[4] end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1], 'version', ARGV[2], 'digest', digest, 'record', ARGV[4],
           'served', '0', 'fallback', fallback)
if inc > tonumber(redis.call('GET', KEYS[3]) or '0') then redis.call('SET', KEYS[3], ARGV[1]) end
return {'set', 0}
"""

# KEYS: desired, served. ARGV: incarnation, version, digest.
_SERVED = """
local cur = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'digest')
if cur[1] == ARGV[1] and cur[2] == ARGV[2] and cur[3] == ARGV[3] then
  redis.call('HSET', KEYS[1], 'served', '1', 'fallback', '')
end
local old = redis.call('HMGET', KEYS[2], 'incarnation', 'version')
local oinc, over = tonumber(old[1] or '-1'), tonumber(old[2] or '-1')
local inc, ver = tonumber(ARGV[1]), tonumber(ARGV[2])
if inc > oinc or (inc == oinc and ver > over) then
  redis.call('HSET', KEYS[2], 'incarnation', ARGV[1], 'version', ARGV[2], 'digest', ARGV[3])
end
"""

# KEYS: desired. ARGV: incarnation, version, digest of what failed; the same and the record of what to fall back to.
_REVERT = """
local cur = redis.call('HMGET', KEYS[1], 'incarnation', 'version', 'digest', 'served')
if cur[1] ~= ARGV[1] or cur[2] ~= ARGV[2] or cur[3] ~= ARGV[3] or cur[4] == '1' then return 0 end
if ARGV[7] == '' then redis.call('DEL', KEYS[1]); return 1 end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[4], 'version', ARGV[5], 'digest', ARGV[6], 'record', ARGV[7],
           'served', '1', 'fallback', '')
return 1
"""


class Fleet:
    """`namespace` is the member's. A replica that is silent for `ttl_s` seconds is no longer listed."""

    def __init__(self, redis: Redis, namespace: str, *, ttl_s: float) -> None:
        self._redis: Any = redis  # the client's own types are unions over its options
        self._ns = namespace
        self._ttl_s = ttl_s
        self._desired = f"{namespace}:desired"
        self._served = f"{namespace}:served"
        self._replicas = f"{namespace}:replicas"
        self._desire = redis.register_script(_DESIRE)
        self._mark = redis.register_script(_SERVED)
        self._revert = redis.register_script(_REVERT)

    async def view(self) -> View:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hget(self._desired, "record")
            pipe.hgetall(self._served)
            record, served = await pipe.execute()
        desired = None if record is None else Published.model_validate_json(record)
        return View(desired, _tag(served) if served else None)

    async def desire(self, published: Published) -> bool:
        """Make these the desired weights; False if they are already. Raises Conflict."""
        tag = published.tag
        verdict, known = await self._desire(
            keys=[self._desired, f"{self._ns}:trainer:{published.run}", f"{self._ns}:incarnation"],
            args=[tag.incarnation, tag.version, tag.digest, published.model_dump_json()],
        )
        match verdict.decode():
            case "fenced":
                raise Conflict(
                    f"incarnation {tag.incarnation} was replaced by {known}: another trainer of this member has "
                    "started; stop",
                    kind="fenced",
                )
            case "older":
                raise Conflict(f"version {tag.version} is older than {known}, which was published before", kind="older")
            case "differs":
                raise Conflict(
                    f"version {tag.version} was published with another digest: a published version is never changed; "
                    "publish the next version",
                    kind="differs",
                )
            case outcome:
                return bool(outcome == "set")

    async def revert(self, failed: Published) -> Published | None:
        """Fall back from weights that failed and that nobody served; what is desired now."""
        raw = await self._redis.hget(self._desired, "fallback")
        fallback = Published.model_validate_json(raw) if raw else None
        tag = failed.tag
        new: list[Any] = ["", "", "", ""]
        if fallback is not None:
            ftag = fallback.tag
            new = [ftag.incarnation, ftag.version, ftag.digest, fallback.model_dump_json()]
        await self._revert(keys=[self._desired], args=[tag.incarnation, tag.version, tag.digest, *new])
        return (await self.view()).desired

    async def mark_served(self, tag: WeightsTag) -> None:
        await self._mark(keys=[self._desired, self._served], args=[tag.incarnation, tag.version, tag.digest])

    # Replicas ----------------------------------------------------------------------------------------------------

    async def announce(self, replica: Replica) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(f"{self._ns}:replica:{replica.id}", replica.model_dump_json(), px=int(self._ttl_s * 1000))
            pipe.zadd(self._replicas, {replica.id: replica.started_at})
            await pipe.execute()

    async def withdraw(self, replica_id: str) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(f"{self._ns}:replica:{replica_id}")
            pipe.zrem(self._replicas, replica_id)
            await pipe.execute()

    async def replicas(self) -> list[Replica]:
        """Those whose heartbeat is not older than `ttl_s`, the longest running first."""
        ids = [raw.decode() for raw in await self._redis.zrange(self._replicas, 0, -1)]
        if not ids:
            return []
        values = await self._redis.mget([f"{self._ns}:replica:{replica_id}" for replica_id in ids])
        gone = [replica_id for replica_id, value in zip(ids, values, strict=True) if value is None]
        if gone:
            await self._redis.zrem(self._replicas, *gone)
        return [Replica.model_validate_json(value) for value in values if value is not None]


def _tag(fields: dict[bytes, bytes]) -> WeightsTag:
    return WeightsTag(
        incarnation=int(fields[b"incarnation"]), version=int(fields[b"version"]), digest=fields[b"digest"].decode()
    )
