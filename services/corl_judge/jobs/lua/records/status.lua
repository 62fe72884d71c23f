-- KEYS: record. ARGV: status, retention ms, error (if any). Returns 0 if there is none or it has ended.
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'running' then return 0 end
redis.call('HSET', KEYS[1], 'status', ARGV[1])
if ARGV[3] then redis.call('HSET', KEYS[1], 'error', ARGV[3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
