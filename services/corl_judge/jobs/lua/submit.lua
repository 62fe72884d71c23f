-- ARGV: nonce, asker, ttl ms, stream ttl ms, limit (-1: none), then key and payload of each item.
-- Returns {'full', depth} with nothing changed, or {'ok', {id, created, state, result} ...}.
local nonce, asker, ttl, stream_ttl, limit = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)

-- A job that can still answer: done, or unfinished with its entry in the stream.
local function current(key)
  local id = redis.call('GET', index_key(key))
  if not id then return false end
  local job = redis.call('HMGET', job_key(id), 'state', 'entry')
  if job[1] == 'done' or (unfinished(job[1]) and fields_of(job[2])) then return id, job[1] end
  return false
end

if limit >= 0 then
  local depth = redis.call('XLEN', work)
  if depth >= limit then
    for i = 8, #ARGV, 2 do
      if not current(ARGV[i]) then return {'full', depth} end
    end
  end
end

local tickets = {'ok'}
for i = 8, #ARGV, 2 do
  local key, payload = ARGV[i], ARGV[i + 1]
  local fresh = nonce .. string.format('%x', (i - 8) / 2)
  local id, state = current(key)
  local created, result = 0, false
  if id then
    -- The reply to a command that was sent again must read as the first one's.
    if string.sub(id, 13) == fresh then created = 1 end
    if state == 'done' then
      result = redis.call('HGET', job_key(id), 'result')
    else
      redis.call('SADD', askers_key(id), asker)
    end
    local known = tonumber(redis.call('HGET', job_key(id), 'ttl'))
    if known < ttl then redis.call('HSET', job_key(id), 'ttl', ttl) end
  else
    id, state, created = string.format('%011x-%s', ms, fresh), 'queued', 1
    local entry = redis.call('XADD', work, '*', 'job', id, 'payload', payload)
    redis.call('HSET', job_key(id), 'key', key, 'state', state, 'entry', entry, 'failures', 0, 'lapses', 0, 'ttl', ttl)
    redis.call('SADD', askers_key(id), asker)
    redis.call('SET', index_key(key), id)
    count('submitted')
  end
  touch(id, key, ttl)
  tickets[#tickets + 1] = {id, created, state, result}
end
extend(work, math.max(stream_ttl, ttl))
extend(stats, stream_ttl)
return tickets
