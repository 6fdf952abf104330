-- A record's text, one line a part (core/record.py has the same as values). Ids, tokens and nodes are
-- percent-encoded by the client, so a blank always separates. An expiry of 0 means never.
--   q <task id> <expires at> <generation> <since>
--   r <token> <task id> <nonce> <fence> <generation> <node> <started> <expires at> <marked until>
--   d <task id> <expires at> <since>
--   e <task id, or - > <nonce, or the token of a run that was ended since its result is final> <expires at>
--   t <task id> <token> <started> <expires at>
--   n <task id> <nonce> <count> <expires at>
--   s <starts> <window> <tail> <gap> <freed> <expires at>, see pacing.lua
-- load(key) gives the live parts as {q = {...}, r = {...}, e = {...}, t = {...}, n = {...}, d = {...} or nil,
-- s = {...} or nil}, each part a list of its fields; save() writes every loaded record that has changed, with
-- the expiry of its last part.
local FIELDS = {q = 4, r = 9, d = 3, e = 3, t = 4, n = 4, s = 6}
local EXPIRY = {q = 2, r = 8, d = 2, e = 3, t = 4, n = 4, s = 6}
local SINGLE = {d = true, s = true}
local texts, records = {}, {}

local function int(number)
  return string.format('%.0f', number)
end

local function foreign(key)
  error('celery-dedupe: <' .. key .. '> is not a record')
end

local function fetch(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' then return text end
  local problem = tostring(text.err)
  if string.find(problem, 'WRONGTYPE', 1, true) then foreign(key) end
  error(problem)
end

local function parse(key, text)
  local record = {q = {}, r = {}, e = {}, t = {}, n = {}}
  for line in string.gmatch(text, '[^\n]+') do
    local kind, part = string.sub(line, 1, 1), {}
    for field in string.gmatch(string.sub(line, 3), '%S+') do part[#part + 1] = field end
    if #part ~= FIELDS[kind] then foreign(key) end
    local expiry = tonumber(part[EXPIRY[kind]]) or foreign(key)
    if expiry > now or expiry == 0 then
      if SINGLE[kind] then record[kind] = part else table.insert(record[kind], part) end
    end
  end
  return record
end

local function load(key)
  if not records[key] then
    texts[key] = fetch(key) or ''
    records[key] = parse(key, texts[key])
  end
  return records[key]
end

-- Removes the parts whose field has the value.
local function drop(parts, field, value)
  for i = #parts, 1, -1 do
    if parts[i][field] == value then table.remove(parts, i) end
  end
end

local function find(parts, field, value)
  for _, part in ipairs(parts) do
    if part[field] == value then return part end
  end
end

local function queue(record, id, ttl, generation)
  local old = find(record.q, 1, id)
  drop(record.q, 1, id)
  table.insert(record.q, {id, int(now + ttl), generation, old and old[4] or int(now)})
end

local function left(expiry)
  return expiry == '0' and '-1' or int(expiry - now)
end

-- Appends to reply a text for each who is in the way: state, task id, ms left (-1 for ever), token, started;
-- of the first of the states 'q', 'r', 'd' that has any. The ids me and inside are no obstacle while queued or
-- running. Where the work may be done ('d') but no mark is left, 't' names those whose lease has died.
local function holders(reply, record, states, me, inside)
  local head = #reply
  local function add(...) reply[#reply + 1] = table.concat({...}, ' ') end
  if string.find(states, 'q', 1, true) then
    for _, part in ipairs(record.q) do
      if part[1] ~= me and part[1] ~= inside then add('q', part[1], left(part[2]), '-', '0') end
    end
  end
  if #reply == head and string.find(states, 'r', 1, true) then
    for _, part in ipairs(record.r) do
      if part[2] ~= me and part[2] ~= inside then add('r', part[2], left(part[8]), part[1], part[7]) end
    end
  end
  if #reply == head and record.d and string.find(states, 'd', 1, true) then
    add('d', record.d[1], left(record.d[2]), '-', '0')
  end
  if #reply == head and string.find(states, 'd', 1, true) then
    for _, part in ipairs(record.t) do
      local runs = find(record.r, 1, part[2])
      if not runs and part[1] ~= me and part[1] ~= inside then
        add('t', part[1], left(part[4]), part[2], part[3])
      end
    end
  end
  return reply
end

local function forget(record, tokens)
  for token in string.gmatch(tokens, '%S+') do
    drop(record.r, 1, token)
    drop(record.t, 2, token)
  end
end

local function marked(record, id, nonce)
  for at, part in ipairs(record.e) do
    if part[1] == id and part[2] == nonce then return part, at end
  end
end

local function unmark(record, id, nonce)
  local _, at = marked(record, id, nonce)
  if at then table.remove(record.e, at) end
end

local function mark(record, id, nonce, expiry)
  unmark(record, id, nonce)
  table.insert(record.e, {id, nonce, expiry})
end

-- Ends the runs named by tokens, whose results are final; each finds a mark of it.
local function close(record, tokens)
  for token in string.gmatch(tokens, '%S+') do
    local run = find(record.r, 1, token)
    if run then mark(record, '-', token, run[8]) end
    forget(record, token)
  end
end

local function save()
  for key, record in pairs(records) do
    local lines, last, forever = {}, 0, false
    local function add(kind, part)
      lines[#lines + 1] = kind .. ' ' .. table.concat(part, ' ')
      local expiry = tonumber(part[EXPIRY[kind]])
      forever = forever or expiry == 0
      last = math.max(last, expiry)
    end
    for _, kind in ipairs({'q', 'r', 'e', 't', 'n'}) do
      for _, part in ipairs(record[kind]) do add(kind, part) end
    end
    for _, kind in ipairs({'d', 's'}) do
      if record[kind] then add(kind, record[kind]) end
    end
    local text = table.concat(lines, '\n')
    if text == texts[key] then -- Nothing has changed.
    elseif text == '' then redis.call('DEL', key)
    elseif forever then redis.call('SET', key, text)
    else redis.call('SET', key, text, 'PXAT', int(last)) end
  end
end
