-- Goes before record.lua and claim.lua: claims locks that nobody holds, as most are, and writes what claim.lua
-- would. To set up all that a held lock needs takes the server several times as long.
-- KEYS, ARGV, reply  as in claim.lua
local words, held = {}, false
for word in string.gmatch(ARGV[1], '%S+') do words[#words + 1] = word end
for _, key in ipairs(KEYS) do held = held or redis.pcall('GET', key) end
if not held then
  for i, key in ipairs(KEYS) do
    local ends = string.format('%.0f', now + words[2 + 2 * i])
    local since = string.format('%.0f', now)
    redis.call('SET', key, table.concat({'q', words[1], ends, words[3], since}, ' '), 'PXAT', ends)
  end
  return {}
end
