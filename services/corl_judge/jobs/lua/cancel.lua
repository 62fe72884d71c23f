-- ARGV: asker, then job ids. Returns for each its state, or 'gone'.
local asker = ARGV[3]
local states = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local state = redis.call('HGET', job_key(id), 'state')
  if unfinished(state) and redis.call('SREM', askers_key(id), asker) == 1
    and redis.call('SCARD', askers_key(id)) == 0 then
    finish(id, 'cancelled')
    state = 'cancelled'
  end
  states[#states + 1] = state or 'gone'
end
return states
