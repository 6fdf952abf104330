-- A record's text, one line a part (core/record.py has the same as values). Ids and nodes are percent-encoded
-- by the client, so a blank always separates. An expiry of 0 means never.
--   q <task id> <expires at> <retries>
--   r <token> <task id> <nonce> <fence> <retries> <node> <started> <expires at> <marked until>
--   d <task id> <expires at>
--   e <task id> <nonce> <expires at>
-- load(key) gives the live parts as {q = {...}, r = {...}, e = {...}, d = {...} or nil}, each part a list of its
-- fields; save() writes every record that was marked by touch(key), with the expiry of its last part.
local FIELDS = {q = 3, r = 9, d = 2, e = 3}
local EXPIRY = {q = 2, r = 8, d = 2, e = 3}
local loaded, touched = {}, {}

local function int(number)
  return string.format('%.0f', number)
end

local function alive(expiry)
  return expiry == '0' or tonumber(expiry) > now
end

local function parse(text)
  local record = {q = {}, r = {}, e = {}}
  for line in string.gmatch(text, '[^\n]+') do
    local kind, part = string.sub(line, 1, 1), {}
    for field in string.gmatch(string.sub(line, 3), '%S+') do part[#part + 1] = field end
    if #part ~= FIELDS[kind] then error('celery-dedupe: a record has a line that is not its own: ' .. line) end
    if alive(part[EXPIRY[kind]]) then
      if kind == 'd' then record.d = part else table.insert(record[kind], part) end
    end
  end
  return record
end

local function load(key)
  if not loaded[key] then loaded[key] = parse(redis.call('GET', key) or '') end
  return loaded[key]
end

local function touch(key)
  touched[key] = true
end

-- Removes the parts whose field has the value; returns the last one removed.
local function drop(parts, field, value)
  local found
  for i = #parts, 1, -1 do
    if parts[i][field] == value then found = table.remove(parts, i) end
  end
  return found
end

local function find(parts, field, value)
  for _, part in ipairs(parts) do
    if part[field] == value then return part end
  end
end

local function queue(record, id, ttl, retries)
  drop(record.q, 1, id)
  table.insert(record.q, {id, int(now + ttl), retries})
end

local function left(expiry)
  return expiry == '0' and '-1' or int(expiry - now)
end

-- Appends to reply who is in the way: state, task id, ms left (-1 for ever), token, started; of the first of the
-- states 'q', 'r', 'd' that has any. The ids me and inside are no obstacle while queued or running.
local function holders(reply, record, states, me, inside)
  for _, state in ipairs({'q', 'r'}) do
    if string.find(states, state, 1, true) then
      local id = state == 'q' and 1 or 2
      for _, part in ipairs(record[state]) do
        if part[id] ~= me and part[id] ~= inside then
          local more = state == 'r' and {part[1], part[7]} or {'', '0'}
          for _, value in ipairs({state, part[id], left(part[EXPIRY[state]]), more[1], more[2]}) do
            table.insert(reply, value)
          end
        end
      end
      if #reply > 1 then return reply end
    end
  end
  if record.d and string.find(states, 'd', 1, true) then
    for _, value in ipairs({'d', record.d[1], left(record.d[2]), '', '0'}) do table.insert(reply, value) end
  end
  return reply
end

local function forget(record, tokens)
  for token in string.gmatch(tokens, '%S+') do drop(record.r, 1, token) end
end

local function save()
  for key in pairs(touched) do
    local lines, last, forever = {}, 0, false
    local function add(kind, part)
      table.insert(lines, kind .. ' ' .. table.concat(part, ' '))
      local expiry = tonumber(part[EXPIRY[kind]])
      forever = forever or expiry == 0
      last = math.max(last, expiry)
    end
    for _, kind in ipairs({'q', 'r', 'e'}) do
      for _, part in ipairs(loaded[key][kind]) do add(kind, part) end
    end
    if loaded[key].d then add('d', loaded[key].d) end
    if #lines == 0 then redis.call('DEL', key)
    elseif forever then redis.call('SET', key, table.concat(lines, '\n'))
    else redis.call('SET', key, table.concat(lines, '\n'), 'PXAT', int(last)) end
  end
end
