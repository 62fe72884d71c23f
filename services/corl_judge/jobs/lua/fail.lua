-- ARGV: id, entry, consumer, mode, error, max failures, dead entries kept, stream ttl ms.
-- Modes: fail (counted), final (dead at once), release (given back, not counted), lapse (the lease lapses now).
-- Returns lost, dead or queued.
local id, entry, consumer, mode, message = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local max_failures, kept, stream_ttl = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
if not owned(id, entry, consumer) then return 'lost' end
if mode == 'lapse' then
  -- Whoever reclaims it counts the lapse, as for a worker that vanished without a word.
  redis.call('XCLAIM', work, group, consumer, 0, entry, 'IDLE', LAPSED_NOW, 'JUSTID')
  return 'queued'
end
if mode ~= 'release' then
  local failures = redis.call('HINCRBY', job_key(id), 'failures', 1)
  count('failed')
  if mode == 'final' or failures >= max_failures then
    bury(id, mode == 'final' and 'rejected' or 'failed', message, kept, stream_ttl)
    return 'dead'
  end
  redis.call('HSET', job_key(id), 'error', message)
end
-- A new entry, since only that wakes a blocked reader.
local fields = fields_of(entry)
remove(entry)
if not fields then return 'lost' end
local again = redis.call('XADD', work, '*', 'job', id, 'payload', fields[4])
redis.call('HSET', job_key(id), 'state', 'queued', 'entry', again)
return 'queued'
