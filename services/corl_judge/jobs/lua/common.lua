-- Shared by every script of the queue. All keys start with the namespace, so a hash tag in it keeps them in one slot.
local ns, group, work = ARGV[1], ARGV[2], KEYS[1]
local dead, stats, events = ns .. ':dead', ns .. ':stats', ns .. ':events'

-- Idle time, in ms, of an entry whose worker said that it was about to vanish.
local LAPSED_NOW = 2 ^ 40

local function job_key(id) return ns .. ':job:' .. id end
local function askers_key(id) return ns .. ':askers:' .. id end
local function index_key(key) return ns .. ':key:' .. key end
local function count(name) redis.call('HINCRBY', stats, name, 1) end
local function unfinished(state) return state == 'queued' or state == 'running' end

-- Lengthens, never shortens; PEXPIRE GT would need Redis 7.
local function extend(key, ms)
  local left = redis.call('PTTL', key)
  if left ~= -2 and left < ms then redis.call('PEXPIRE', key, ms) end
end

local function touch(id, key, ms)
  extend(job_key(id), ms)
  extend(askers_key(id), ms)
  extend(index_key(key), ms)
end

-- An entry always leaves the group and the stream together.
local function remove(entry)
  redis.call('XACK', work, group, entry)
  redis.call('XDEL', work, entry)
end

local function fields_of(entry)
  local rows = redis.call('XRANGE', work, entry, entry)
  return rows[1] and rows[1][2]
end

-- The consumer that holds the entry, or false. XPENDING raises while there is no group.
local function owner(entry)
  local rows = redis.pcall('XPENDING', work, group, entry, entry, 1)
  return not rows.err and rows[1] and rows[1][2]
end

-- Whether the consumer still holds this entry as the job's current one.
local function owned(id, entry, consumer)
  local job = redis.call('HMGET', job_key(id), 'state', 'entry')
  return job[1] == 'running' and job[2] == entry and owner(entry) == consumer
end

-- The one way a job ends. `...` are further fields and values of its hash.
local function finish(id, state, ...)
  local name = job_key(id)
  redis.call('HSET', name, 'state', state, ...)
  local job = redis.call('HMGET', name, 'key', 'entry', 'ttl')
  remove(job[2])
  redis.call('DEL', askers_key(id))
  touch(id, job[1], tonumber(job[3]))
  count(state)
  redis.call('PUBLISH', events, id)
end

local function bury(id, reason, message, kept, stream_ttl)
  local job = redis.call('HMGET', job_key(id), 'key', 'entry', 'failures', 'lapses')
  local fields = fields_of(job[2])
  redis.call('XADD', dead, 'MAXLEN', '~', kept, '*', 'job', id, 'key', job[1], 'reason', reason, 'error', message,
    'failures', job[3], 'lapses', job[4], 'payload', fields and fields[4] or '')
  extend(dead, stream_ttl)
  finish(id, 'dead', 'reason', reason, 'error', message)
end
