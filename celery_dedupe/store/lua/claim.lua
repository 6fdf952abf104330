-- Claims every lock for a call about to be published, or none. A claim that the surrounding run still has in
-- the queue becomes the call's.
-- KEYS   the locks
-- ARGV   task id, id of the surrounding run or '-', the count below which attempts are over, tokens known to
--        have ended (blanks between),
--        then for each key: ttl ms, the states that refuse in one word ('q' queued, 'r' running, 'd' done)
-- reply  [] granted; else [index from 1, then for each holder: state, task id, ms left, token, started]
local id, inside, over, ended = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
for i, key in ipairs(KEYS) do
  local ttl, states = ARGV[3 + 2 * i], ARGV[4 + 2 * i]
  local record = load(key)
  close(record, ended)
  local reply = holders({int(i)}, record, states, id, inside)
  if #reply > 1 then return reply end
  drop(record.q, 1, inside)
  queue(record, id, ttl, over)
end
save()
return {}
