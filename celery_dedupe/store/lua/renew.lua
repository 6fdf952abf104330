-- Prolongs leases, owner-checked.
-- KEYS   the locks
-- ARGV   for each key: token, lease ms
-- reply  for each key: 1, or 0 where the slot is no longer the token's, and was not ended for its result
local reply = {}
for i, key in ipairs(KEYS) do
  -- One lock that a foreign value has overwritten must not cost this process all its other leases.
  local ours, record = pcall(load, key)
  local token, ends = ARGV[2 * i - 1], int(now + ARGV[2 * i])
  local run, result = ours and find(record.r, 1, token), ours and marked(record, '-', token)
  if run then run[8] = ends elseif result then result[3] = ends end
  reply[i] = (run or result) and 1 or 0
end
save()
return reply
