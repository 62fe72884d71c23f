-- ARGV: consumer, lease ms, then id and entry of each lease. Returns the entries that are no longer this consumer's.
local consumer, lease = ARGV[3], tonumber(ARGV[4])
local lost = {}
for i = 5, #ARGV, 2 do
  local id, entry = ARGV[i], ARGV[i + 1]
  if owned(id, entry, consumer) then
    redis.call('XCLAIM', work, group, consumer, 0, entry, 'JUSTID')
    local job = redis.call('HMGET', job_key(id), 'key', 'ttl')
    touch(id, job[1], math.max(tonumber(job[2]), 2 * lease))
  else
    lost[#lost + 1] = entry
  end
end
return lost
