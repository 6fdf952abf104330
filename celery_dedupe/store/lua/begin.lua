-- Ends the queued claims of a task and takes its running slots: all of them, or none.
-- KEYS   the locks
-- ARGV   task id, token, nonce, generation, node, started, tokens known to have ended (blanks between),
--        then for each key: slot ('1' or '0'), limit, lease ms, hold ms, mark ms, remembers ('1' or '0'),
--        trace ms, deliveries, 0 for any number, counted ms, and of its rate in microseconds: starts, 0 for
--        no rate, window, slot, reserves ('1' or '0'), patience, silence
-- reply  ['begun', delay ms, a fence for each key], ['refused', index, holders as in claim.lua],
--        ['redelivered', index, ms left of the copy that runs], ['exceeded', index, deliveries],
--        ['later', index, ms to wait, a slot for each key], ['over']
local id, token, nonce, generation, node, started, ended =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local asks = {}
for i, key in ipairs(KEYS) do
  local at = 15 * i - 7
  asks[i] = {key = key, slot = ARGV[at] == '1', limit = tonumber(ARGV[at + 1]), lease = ARGV[at + 2],
             hold = tonumber(ARGV[at + 3]), mark = ARGV[at + 4], remembers = ARGV[at + 5] == '1',
             trace = tonumber(ARGV[at + 6]), deliveries = tonumber(ARGV[at + 7]), counted = ARGV[at + 8],
             rate = ARGV[at + 9] ~= '0' and {
               starts = tonumber(ARGV[at + 9]), window = tonumber(ARGV[at + 10]), slot = tonumber(ARGV[at + 11]),
               reserves = ARGV[at + 12] == '1', patience = tonumber(ARGV[at + 13]),
               silence = tonumber(ARGV[at + 14])}}
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
local function give_way(wait)
  local held = {}
  for _, ask in ipairs(asks) do held[ask.key] = held[ask.key] or ask.hold > 0 end
  for _, ask in ipairs(asks) do
    if ask.hold > 0 then queue(load(ask.key), id, ask.hold + wait, generation)
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
    if reply[1] == 'redelivered' then ask_for_mark() else give_way(0) end
    save()
    return reply
  end
end
for i, ask in ipairs(asks) do
  local count = delivery(load(ask.key), ask)
  if count > ask.deliveries then return {'exceeded', int(i), int(count)} end
end
-- In how many ms all rates let the run start, which is noted; or else what they promise. Where one promises a
-- slot and another does not, the promised one is what the run waits for.
local function pace()
  local answers, late, at, slots = {}, nil, tick, {}
  for i, ask in ipairs(asks) do
    local one = ask.rate and answer(load(ask.key).s, ask.rate)
    answers[i] = one
    if one and not one[2] then
      local other = late and asks[late].rate.reserves
      if not late or (ask.rate.reserves and not other) or
         (ask.rate.reserves == other and one[1] >= answers[late][1]) then late = i end
    elseif one then at = math.max(at, one[1]) end
  end
  if late then at = answers[late][1] end
  for i, ask in ipairs(asks) do
    local one = answers[i]
    slots[i] = '0'
    if one and not late then load(ask.key).s = start(one[3], ask.rate, at)
    elseif one and one[2] then slots[i] = int(ask.rate.slot)
    elseif one then
      load(ask.key).s = one[3][UNTIL] ~= '0' and one[3] or nil
      slots[i] = ask.rate.reserves and int(one[1]) or '0'
    end
  end
  return math.ceil((at - tick) / 1000), late, slots
end

local wait, late, slots = pace()
if late then
  give_way(wait)
  save()
  return {'later', int(late), int(wait), unpack(slots)}
end
local reply = {'begun', int(wait)}
for i, ask in ipairs(asks) do
  drop(load(ask.key).q, 1, id)
  reply[i + 2] = ask.slot and run(load(ask.key), ask) or '0'
end
save()
return reply
