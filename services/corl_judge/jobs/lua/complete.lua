-- ARGV: id, entry, consumer, result, then key, value and ttl ms of each side write.
-- Returns 1 if this result is the job's. The first wins, whoever holds the lease: both are results of the same work.
local id, entry, consumer, result = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local by = consumer .. ' ' .. entry
local job = redis.call('HMGET', job_key(id), 'state', 'by')
if not unfinished(job[1]) then
  remove(entry)
  -- The reply to a command that was sent again must read as the first one's.
  if job[1] == 'done' and job[2] == by then return 1 end
  count('late')
  return 0
end
for i = 7, #ARGV, 3 do
  redis.call('SET', ARGV[i], ARGV[i + 1], 'NX', 'PX', ARGV[i + 2])
end
finish(id, 'done', 'result', result, 'by', by)
return 1
