-- Claims every lock for a call about to be published, or none. A claim that the surrounding run still has in
-- the queue becomes the call's.
-- KEYS   the locks
-- ARGV   words with blanks between, since each argument costs a client more than a word costs here:
--        task id, id of the surrounding run or '-', the count below which attempts are over,
--        then for each key: ttl ms, the states that refuse in one word ('q' queued, 'r' running, 'd' done),
--        then tokens known to have ended
-- reply  [] granted; else [index from 1, then for each holder, in one text: state, task id, ms left, token,
--        started]
local id, inside, over, ended = words[1], words[2], words[3], table.concat(words, ' ', 4 + 2 * #KEYS)
for i, key in ipairs(KEYS) do
  local ttl, states = words[2 + 2 * i], words[3 + 2 * i]
  local record = load(key)
  close(record, ended)
  local reply = holders({int(i)}, record, states, id, inside)
  if #reply > 1 then return reply end
  drop(record.q, 1, inside)
  queue(record, id, ttl, over)
end
save()
return {}
