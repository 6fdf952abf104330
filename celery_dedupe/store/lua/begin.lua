-- Ends the queued claims of a task and takes its running slots: all of them, or none.
-- KEYS   the locks
-- ARGV   task id, token, nonce, generation, node, started, tokens known to have ended (blanks between),
--        then for each key: slot ('1' or '0'), limit, lease ms, hold ms, mark ms, remembers ('1' or '0'),
--        trace ms, deliveries, 0 for any number, counted ms
-- reply  ['begun', a fence for each key], ['refused', index, holders as in claim.lua],
--        ['redelivered', index, ms left of the copy that runs], ['exceeded', index, deliveries], ['over']
local id, token, nonce, generation, node, started, ended =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local asks = {}
for i, key in ipairs(KEYS) do
  local at = 9 * i - 1
  asks[i] = {key = key, slot = ARGV[at] == '1', limit = tonumber(ARGV[at + 1]), lease = ARGV[at + 2],
             hold = tonumber(ARGV[at + 3]), mark = ARGV[at + 4], remembers = ARGV[at + 5] == '1',
             trace = tonumber(ARGV[at + 6]), deliveries = tonumber(ARGV[at + 7]), counted = ARGV[at + 8]}
end

local function stale(record, ask)
  if find(record.r, 1, token) then return false end
  for _, part in ipairs(record.q) do
    if part[1] == id and tonumber(part[3]) > tonumber(generation) then return true end
  end
  for _, part in ipairs(record.r) do
    if part[2] == id and tonumber(part[5]) > tonumber(generation) then return true end
  end
  if marked(record, id, nonce) then return true end
  return ask.remembers and record.d and record.d[1] == id
end

local function obstacle(record, i, ask)
  if find(record.r, 1, token) then return nil end
  local mine = 0
  for _, part in ipairs(record.r) do
    if part[2] == id then mine = math.max(mine, tonumber(part[8])) end
  end
  if mine > 0 then return {'redelivered', int(i), int(mine - now)} end
  if ask.remembers and record.d then return holders({'refused', int(i)}, record, 'd') end
  if #record.r >= ask.limit then return holders({'refused', int(i)}, record, 'r') end
  local lapsed = ask.remembers and holders({'refused', int(i)}, record, 'd', id)
  if lapsed and #lapsed > 2 then return lapsed end
end

local function ask_for_mark()
  for _, ask in ipairs(asks) do
    for _, part in ipairs(load(ask.key).r) do
      if part[2] == id and part[3] == nonce then part[9] = int(now + ask.mark) end
    end
  end
end

-- Two locks may share a key, and one that holds outweighs one that does not.
local function give_way()
  local held = {}
  for _, ask in ipairs(asks) do held[ask.key] = held[ask.key] or ask.hold > 0 end
  for _, ask in ipairs(asks) do
    if ask.hold > 0 then queue(load(ask.key), id, ask.hold, generation)
    elseif not held[ask.key] then drop(load(ask.key).q, 1, id) end
  end
end

-- Which start of its message this is; 0 where nobody counts, or where it is counted already.
local function delivery(record, ask)
  if ask.deliveries == 0 or find(record.r, 1, token) then return 0 end
  local part = find(record.n, 1, id)
  return 1 + (part and part[2] == nonce and part[3] or 0)
end

local function run(record, ask)
  local mine, fence, count = find(record.r, 1, token), tick, delivery(record, ask)
  if not mine then
    for _, part in ipairs(record.r) do fence = math.max(fence, tonumber(part[4]) + 1) end
    mine = {token, id, nonce, int(fence), generation, node, started, '', '0'}
    table.insert(record.r, mine)
  end
  mine[8] = int(now + ask.lease)
  if count > 0 then
    drop(record.n, 1, id)
    table.insert(record.n, {id, nonce, int(count), int(now + ask.counted)})
  end
  if ask.trace > 0 then
    drop(record.t, 1, id)
    table.insert(record.t, {id, token, started, int(now + ask.trace)})
  end
  return mine[4]
end

for _, ask in ipairs(asks) do close(load(ask.key), ended) end
for _, ask in ipairs(asks) do
  if stale(load(ask.key), ask) then return {'over'} end
end
for i, ask in ipairs(asks) do
  local reply = ask.slot and obstacle(load(ask.key), i, ask)
  if reply then
    if reply[1] == 'redelivered' then ask_for_mark() else give_way() end
    save()
    return reply
  end
end
for i, ask in ipairs(asks) do
  local count = delivery(load(ask.key), ask)
  if count > ask.deliveries then return {'exceeded', int(i), int(count)} end
end
local reply = {'begun'}
for i, ask in ipairs(asks) do
  drop(load(ask.key).q, 1, id)
  reply[i + 1] = ask.slot and run(load(ask.key), ask) or '0'
end
save()
return reply
