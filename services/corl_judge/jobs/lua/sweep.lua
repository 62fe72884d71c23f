-- ARGV: idle ms. Removes consumers that hold nothing and have not read for that long; returns their names.
-- In one script, since XGROUP DELCONSUMER would drop what a consumer has claimed meanwhile.
local idle = tonumber(ARGV[3])
local removed = {}
local rows = redis.pcall('XINFO', 'CONSUMERS', work, group)
for _, info in ipairs(rows.err and {} or rows) do
  local facts = {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  if facts['pending'] == 0 and facts['idle'] >= idle then
    redis.call('XGROUP', 'DELCONSUMER', work, group, facts['name'])
    removed[#removed + 1] = facts['name']
  end
end
return removed
