-- ARGV: consumer, count, lease ms, max lapses, reclaim (0/1), suspects allowed, suspect after, lapse message,
-- dead entries kept, stream ttl ms, recover (0/1), then the entries that the consumer knows it holds.
-- Returns {last delivered id, {entry, id, key, payload, failures, lapses} ...}.
local consumer, wanted, lease, max_lapses = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reclaim, suspects, suspect_after = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local message, kept, stream_ttl, recover = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13] == '1'
local reply = {'0-0'}

local function full() return #reply > wanted end

-- Hands the entry over, or clears it away when its job has expired.
local function take(entry, fields)
  local id, payload = fields[2], fields[4]
  local job = redis.call('HMGET', job_key(id), 'state', 'key', 'failures', 'lapses', 'ttl')
  if not unfinished(job[1]) then return remove(entry) end
  redis.call('HSET', job_key(id), 'state', 'running')
  touch(id, job[2], math.max(tonumber(job[5]), 2 * lease))
  reply[#reply + 1] = {entry, id, job[2], payload, tonumber(job[3]), tonumber(job[4])}
end

-- 1. Entries handed to this consumer in a reply that it never got.
if recover then
  local held = {}
  for i = 14, #ARGV do held[ARGV[i]] = true end
  local rows = redis.pcall('XPENDING', work, group, '-', '+', #ARGV - 13 + wanted, consumer)
  for _, row in ipairs(rows.err and {} or rows) do
    if full() then break end
    local fields = fields_of(row[1])
    if not fields then
      redis.call('XACK', work, group, row[1])
    elseif not held[row[1]] then
      redis.call('XCLAIM', work, group, consumer, 0, row[1], 'JUSTID')
      take(row[1], fields)
    end
  end
end

-- 2. Lapsed entries. XPENDING and XCLAIM do what XAUTOCLAIM does, but let a suspect (an item whose worker vanished
-- before) be left for a worker that holds no other: an item that kills its worker must not take its neighbours along.
-- A Redis that has just started grants each owner one lease to renew: its clock ran on while nobody could.
if reclaim and not full() then
  local uptime = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  local idle = (uptime and tonumber(uptime) * 1000 < lease) and LAPSED_NOW / 2 or lease
  local rows = redis.pcall('XPENDING', work, group, 'IDLE', idle, '-', '+', 1000)
  if rows.err then rows = {} end
  for _, row in ipairs(rows) do
    if full() then break end
    local entry = row[1]
    local fields = fields_of(entry)
    if not fields then
      redis.call('XACK', work, group, entry)
    else
      local id = fields[2]
      local name = job_key(id)
      local lapses = tonumber(redis.call('HGET', name, 'lapses') or 0) + 1
      if redis.call('HGET', name, 'entry') ~= entry then
        remove(entry)
      elseif lapses >= max_lapses then
        redis.call('HSET', name, 'lapses', lapses)
        count('lapsed')
        bury(id, 'lapsed', message, kept, stream_ttl)
      elseif lapses < suspect_after or suspects > 0 then
        if lapses >= suspect_after then suspects = suspects - 1 end
        redis.call('HSET', name, 'lapses', lapses)
        count('lapsed')
        redis.call('XCLAIM', work, group, consumer, lease, entry, 'JUSTID')
        take(entry, fields)
      end
    end
  end
end

-- 3. New entries. The group starts at 0, so entries that came before it, or outlived it, are delivered.
while not full() do
  local read = {'XREADGROUP', 'GROUP', group, consumer, 'COUNT', wanted - #reply + 1, 'STREAMS', work, '>'}
  local rows = redis.pcall(unpack(read))
  if rows and rows.err then
    redis.call('XGROUP', 'CREATE', work, group, '0', 'MKSTREAM')
    rows = redis.call(unpack(read))
  end
  if not rows or not rows[1] then break end
  for _, row in ipairs(rows[1][2]) do take(row[1], row[2]) end
end

for _, info in ipairs(redis.pcall('XINFO', 'GROUPS', work)) do
  local facts = {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  if facts['name'] == group then reply[1] = facts['last-delivered-id'] end
end
extend(work, stream_ttl)
return reply
