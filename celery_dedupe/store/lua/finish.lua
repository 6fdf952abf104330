-- Frees the locks of an ending run, owner-checked by the run's token.
-- KEYS   the locks
-- ARGV   task id, retries of the attempt to come, '1' if the run ended well,
--        then for each key: token or '-', outcome ('free', 'done', 'queued', 'withdrawn'), ttl ms (0 for ever)
-- reply  for each key: 1, or 0 where the slot was another's, or gone, already
local id, retries, well = ARGV[1], ARGV[2], ARGV[3] == '1'
local reply = {}
for i, key in ipairs(KEYS) do
  local token, outcome, ttl = ARGV[1 + 3 * i], ARGV[2 + 3 * i], tonumber(ARGV[3 + 3 * i])
  local record = load(key)
  local run = drop(record.r, 1, token)
  reply[i] = (run or token == '-') and 1 or 0
  if outcome == 'queued' then queue(record, id, ttl, retries)
  elseif outcome == 'withdrawn' then drop(record.q, 1, id)
  elseif outcome == 'done' and (run or #record.r == 0) then record.d = {id, ttl == 0 and '0' or int(now + ttl)} end
  if run and well and tonumber(run[9]) > now then table.insert(record.e, {run[2], run[3], run[9]}) end
  touch(key)
end
save()
return reply
