-- Frees the locks of an ending run, owner-checked by the run's token.
-- KEYS   the locks
-- ARGV   task id, generation of the attempt to come, '1' if the message needs no second run,
--        then for each key: token or '-', outcome ('free', 'done', 'queued', 'withdrawn'), ttl ms, 0 for ever
-- reply  for each key: 1, or 0 where the slot was another's, or gone, already
local id, generation, well = ARGV[1], ARGV[2], ARGV[3] == '1'
local runs, results, reply = {}, {}, {}
-- Two locks may share a key and so a run: all are looked up before any is freed.
for i, key in ipairs(KEYS) do
  local token = ARGV[1 + 3 * i]
  runs[i], results[i] = find(load(key).r, 1, token), marked(load(key), '-', token)
end
for i, key in ipairs(KEYS) do
  local token, outcome, ttl = ARGV[1 + 3 * i], ARGV[2 + 3 * i], tonumber(ARGV[3 + 3 * i])
  local record, run = load(key), runs[i]
  local held = run or token == '-'
  forget(record, token)
  unmark(record, '-', token)
  if outcome == 'queued' and held then queue(record, id, ttl, generation)
  elseif outcome == 'withdrawn' then drop(record.q, 1, id)
  elseif outcome == 'done' and (run or not (record.d or record.r[1])) then
    record.d = {id, ttl == 0 and '0' or int(now + ttl), int(now)}
  end
  if run and well and tonumber(run[9]) > now then
    mark(record, run[2], run[3], run[9])
  end
  reply[i] = (held or results[i]) and 1 or 0
end
save()
return reply
