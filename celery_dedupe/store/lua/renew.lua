-- Prolongs leases, owner-checked.
-- KEYS   the locks
-- ARGV   for each key: token, lease ms
-- reply  for each key: 1, or 0 where the slot is no longer the token's
local reply = {}
for i, key in ipairs(KEYS) do
  local run = find(load(key).r, 1, ARGV[2 * i - 1])
  reply[i] = run and 1 or 0
  if run then
    run[8] = int(now + ARGV[2 * i])
    touch(key)
  end
end
save()
return reply
