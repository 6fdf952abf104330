-- An operator's release: frees the parts that are named, where they are still their owners'.
-- KEYS   the locks
-- ARGV   for each key: ids of queued claims, tokens of runs alive or lapsed (blanks between), id of what is
--        done or '-'
-- reply  for each key: how many parts were freed
local function held(record)
  local count = #record.q + #record.r + (record.d and 1 or 0)
  for _, part in ipairs(record.t) do
    if not find(record.r, 1, part[2]) then count = count + 1 end
  end
  return count
end

local reply = {}
for i, key in ipairs(KEYS) do
  local queued, tokens, done = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local record = load(key)
  local before = held(record)
  for id in string.gmatch(queued, '%S+') do drop(record.q, 1, id) end
  forget(record, tokens)
  if record.d and record.d[1] == done then record.d = nil end
  reply[i] = before - held(record)
end
save()
return reply
