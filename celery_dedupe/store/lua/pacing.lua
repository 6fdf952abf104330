-- Starts under a rate, as core/pacing.py has them. Times are microseconds, and lists of them are one word of
-- sixteen digits each, or '-', so that none has to be read but those that count.
-- A part is {starts, longest window, tail, gap, freed, expires at (ms)}; an ask {starts, window, slot, reserves,
-- patience, silence}; an answer {at, whether it may start then, the part with what is promised}.
local STARTS, WINDOW, TAIL, GAP, FREED, UNTIL = 1, 2, 3, 4, 5, 6
local WIDTH, MOST, AHEAD = 16, 1000, 1250000

local function count(times)
  return times == '-' and 0 or #times / WIDTH
end

-- The n-th, counted from the end.
local function from_end(times, n)
  local first = #times - WIDTH * n + 1
  return tonumber(string.sub(times, first, first + WIDTH - 1))
end

local function first(times)
  return tonumber(string.sub(times, 1, WIDTH))
end

-- Those after the first n.
local function after(times, n)
  return #times > WIDTH * n and string.sub(times, WIDTH * n + 1) or '-'
end

-- How many are over by a time.
local function over(times, time)
  local n = 0
  while n < count(times) and tonumber(string.sub(times, WIDTH * n + 1, WIDTH * (n + 1))) <= time do n = n + 1 end
  return n
end

local function append(times, time)
  return (times == '-' and '' or times) .. int(time)
end

local function last_but(times, n)
  return #times > WIDTH * n and string.sub(times, 1, #times - WIDTH * n) or '-'
end

local function gap(ask)
  return math.ceil(ask.window / ask.starts)
end

-- A copy of what is known, without promises that are void by now.
local function heard(known, ask)
  local part = known and {unpack(known)} or {'-', '0', '0', '0', '-', '0'}
  local last = count(part[STARTS]) > 0 and from_end(part[STARTS], 1) or 0
  if last > tick + AHEAD then return {'-', '0', '0', '0', '-', '0'} end
  if tonumber(part[TAIL]) > tick and
     (tick - last > ask.silence or (ask.reserves and gap(ask) < tonumber(part[GAP]))) then
    part[TAIL], part[FREED] = '0', '-'
  end
  part[FREED] = after(part[FREED], over(part[FREED], tick))
  return part
end

-- The earliest time at which the window has room, never before an earlier start.
local function room(part, ask)
  local free, known = tick, count(part[STARTS])
  if known > 0 then free = math.max(free, from_end(part[STARTS], 1)) end
  if known >= ask.starts then free = math.max(free, from_end(part[STARTS], ask.starts) + ask.window) end
  return free
end

local function lasting(part, ask, at)
  part[UNTIL] = int(math.max(tonumber(part[UNTIL]), math.floor((at + ask.window) / 1000) + 1))
end

local function promise(part, ask, free)
  if count(part[FREED]) > 0 then
    local slot = first(part[FREED])
    part[FREED] = after(part[FREED], 1)
    return slot
  end
  local slot = part[TAIL] + gap(ask)
  if tonumber(part[TAIL]) <= tick then slot = math.max(free, slot) end
  part[TAIL], part[GAP] = int(slot), int(gap(ask))
  lasting(part, ask, slot)
  return slot
end

local function answer(known, ask)
  local part, soon = heard(known, ask), tick + ask.patience
  local free = room(part, ask)
  local held = ask.slot <= math.max(tonumber(part[TAIL]), soon) and ask.slot or 0
  if held > 0 and math.max(free, held) <= soon then return {math.max(free, held), true, part} end
  if held > soon then return {held, false, part} end
  if tonumber(part[TAIL]) <= tick and free <= soon then return {free, true, part} end
  local before = {unpack(part)}
  local slot = promise(part, ask, free)
  if math.max(free, slot) <= soon then return {math.max(free, slot), true, part} end
  return {slot, false, ask.reserves and part or before}
end

local function start(part, ask, at)
  local window = math.max(tonumber(part[WINDOW]), ask.window)
  local starts = append(after(part[STARTS], over(part[STARTS], at - window)), at)
  part[STARTS] = after(starts, math.max(count(starts) - MOST, 0))
  part[WINDOW] = int(window)
  lasting(part, ask, at)
  return part
end

-- Takes a promise back whose run does not come.
local function give_back(part, slot)
  if slot <= tick or slot > tonumber(part[TAIL]) then return end
  local before = over(part[FREED], slot)
  if before > 0 and from_end(part[FREED], count(part[FREED]) - before + 1) == slot then return end
  local freed = append(before > 0 and string.sub(part[FREED], 1, WIDTH * before) or '-', slot)
  local later = after(part[FREED], before)
  if later ~= '-' then freed = freed .. later end
  while count(freed) > 0 and from_end(freed, 1) >= tonumber(part[TAIL]) do
    freed, part[TAIL] = last_but(freed, 1), int(part[TAIL] - part[GAP])
  end
  part[FREED] = last_but(freed, math.max(count(freed) - MOST, 0))
end
