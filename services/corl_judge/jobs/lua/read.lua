-- ARGV: bytes, then job ids. Returns for each {state, key, result or error, reason, failures, lapses}; {'gone'} when
-- its hash or, unfinished, its entry is no more. Stops early, after at least one, when it has read that many bytes.
local limit, read = tonumber(ARGV[3]), 0
local rows = {}
for i = 4, #ARGV do
  local job =
    redis.call('HMGET', job_key(ARGV[i]), 'state', 'key', 'result', 'error', 'reason', 'failures', 'lapses', 'entry')
  local state = job[1]
  if not state or (unfinished(state) and not fields_of(job[8])) then
    rows[#rows + 1] = {'gone'}
  else
    local value = not unfinished(state) and (job[3] or job[4]) or ''
    rows[#rows + 1] = {state, job[2], value, job[5] or '', tonumber(job[6]), tonumber(job[7])}
    read = read + #value
    if read >= limit then break end
  end
end
return rows
