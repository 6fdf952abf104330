-- KEYS   hashes of counts
-- reply  all their fields, each followed by its value
local reply = {}
for _, key in ipairs(KEYS) do
  for _, word in ipairs(redis.call('HGETALL', key)) do reply[#reply + 1] = word end
end
return reply
