-- Prolongs leases, owner-checked.
-- KEYS   the locks
-- ARGV   for each key: token, lease ms
-- reply  for each key: 1, or 0 where the slot is no longer the token's
local reply = {}
for i, key in ipairs(KEYS) do
  -- One lock that a foreign value has overwritten must not cost this process all its other leases.
  local ours, record = pcall(load, key)
  local run = ours and find(record.r, 1, ARGV[2 * i - 1])
  if run then run[8] = int(now + ARGV[2 * i]) end
  reply[i] = run and 1 or 0
end
save()
return reply
