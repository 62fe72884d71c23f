-- KEYS: record, index, idempotency key (if any).
-- ARGV: id, digest of the body, retention ms, created s, kind, request, queue, keys, prefix of record names.
-- Returns {created | same | conflict, id}.
local id, digest, retention = ARGV[1], ARGV[2], tonumber(ARGV[3])
if KEYS[3] then
  local known = redis.call('HMGET', KEYS[3], 'id', 'digest')
  if known[1] and redis.call('EXISTS', ARGV[9] .. known[1]) == 1 then
    return {known[2] == digest and 'same' or 'conflict', known[1]}
  end
  redis.call('HSET', KEYS[3], 'id', id, 'digest', digest)
  redis.call('PEXPIRE', KEYS[3], 2 * retention)
end
redis.call('HSET', KEYS[1], 'created', ARGV[4], 'kind', ARGV[5], 'request', ARGV[6], 'queue', ARGV[7], 'keys', ARGV[8],
  'status', 'queued')
redis.call('PEXPIRE', KEYS[1], retention)
redis.call('ZADD', KEYS[2], ARGV[4], id)
redis.call('PEXPIRE', KEYS[2], 2 * retention)
return {'created', id}
