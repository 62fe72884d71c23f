-- ARGV: asker, then job ids. Returns for each its state, or 'gone'.
local asker = ARGV[3]
local states = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local state = redis.call('HGET', job_key(id), 'state')
  if unfinished(state) then
    redis.call('SREM', askers_key(id), asker)
    if redis.call('SCARD', askers_key(id)) == 0 then
      finish(id, 'cancelled')
      state = 'cancelled'
    end
  end
  states[#states + 1] = state or 'gone'
end
return states
