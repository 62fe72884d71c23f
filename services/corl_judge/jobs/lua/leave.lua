-- ARGV: consumer. Removes it if it holds nothing.
local rows = redis.pcall('XPENDING', work, group, '-', '+', 1, ARGV[3])
if rows.err or rows[1] then return 0 end
redis.call('XGROUP', 'DELCONSUMER', work, group, ARGV[3])
return 1
