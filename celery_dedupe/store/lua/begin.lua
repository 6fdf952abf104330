-- Ends the queued claims of a task and takes its running slots: all of them, or none.
-- KEYS   the locks
-- ARGV   task id, token, nonce, retries, node, started, tokens known to have ended (blanks between),
--        then for each key: slot ('1' or '0'), limit, lease ms, hold ms, mark ms, remembers ('1' or '0')
-- reply  ['begun', a fence for each key], ['refused', index, holders as in claim.lua],
--        ['redelivered', index, ms left of the copy that runs], ['over']
local id, token, nonce, retries, node, started, ended =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local function ask(i)
  local at = 2 + 6 * i
  return {slot = ARGV[at] == '1', limit = tonumber(ARGV[at + 1]), lease = ARGV[at + 2], hold = tonumber(ARGV[at + 3]),
          mark = ARGV[at + 4], remembers = ARGV[at + 5] == '1'}
end

local function obstacle(record, i, lock)
  if find(record.r, 1, token) then return nil end
  local mine = 0
  for _, part in ipairs(record.q) do
    if part[1] == id and tonumber(part[3]) > tonumber(retries) then return {'over'} end
  end
  for _, part in ipairs(record.r) do
    if part[2] == id then
      if tonumber(part[5]) > tonumber(retries) then return {'over'} end
      mine = math.max(mine, tonumber(part[8]))
    end
  end
  for _, part in ipairs(record.e) do
    if part[1] == id and part[2] == nonce then return {'over'} end
  end
  if mine > 0 then return {'redelivered', int(i), int(mine - now)} end
  if lock.remembers and record.d then
    if record.d[1] == id then return {'over'} end
    return holders({'refused', int(i)}, record, 'd')
  end
  if #record.r >= lock.limit then return holders({'refused', int(i)}, record, 'r') end
end

local function give_way(verdict)
  for i, key in ipairs(KEYS) do
    local record, lock = load(key), ask(i)
    if verdict == 'redelivered' then
      for _, part in ipairs(record.r) do
        if part[2] == id and part[3] == nonce then part[9] = int(now + lock.mark) end
      end
    elseif lock.hold > 0 then queue(record, id, lock.hold, retries)
    else drop(record.q, 1, id) end
    touch(key)
  end
  save()
end

for i, key in ipairs(KEYS) do
  forget(load(key), ended)
  local lock = ask(i)
  local reply = lock.slot and obstacle(load(key), i, lock)
  if reply then
    if reply[1] ~= 'over' then give_way(reply[1]) end
    return reply
  end
end

local reply = {'begun'}
for i, key in ipairs(KEYS) do
  local record, lock = load(key), ask(i)
  drop(record.q, 1, id)
  local fence = '0'
  if lock.slot then
    local mine = find(record.r, 1, token)
    local least = tick
    for _, part in ipairs(record.r) do least = math.max(least, tonumber(part[4]) + 1) end
    fence = mine and mine[4] or int(least)
    if mine then mine[8] = int(now + lock.lease)
    else table.insert(record.r, {token, id, nonce, fence, retries, node, started, int(now + lock.lease), '0'}) end
  end
  table.insert(reply, fence)
  touch(key)
end
save()
return reply
