-- KEYS   the locks
-- reply  [now, for each key its record's text or nil]
local reply = {int(now)}
for i, key in ipairs(KEYS) do reply[i + 1] = fetch(key) end
return reply
