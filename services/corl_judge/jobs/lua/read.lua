-- ARGV: job ids. Returns for each {state, key, result or error, reason, failures, lapses}; {'gone'} when its hash or,
-- unfinished, its entry is no more.
local rows = {}
for i = 3, #ARGV do
  local job = redis.call('HMGET', job_key(ARGV[i]), 'state', 'key', 'result', 'error', 'reason', 'failures', 'lapses', 'entry')
  local state = job[1]
  if not state or (unfinished(state) and not fields_of(job[8])) then
    rows[#rows + 1] = {'gone'}
  else
    rows[#rows + 1] = {state, job[2], job[3] or job[4] or '', job[5] or '', tonumber(job[6]), tonumber(job[7])}
  end
end
return rows
