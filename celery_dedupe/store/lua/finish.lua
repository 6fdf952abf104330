-- Frees the locks of an ending run, owner-checked by the run's token.
-- KEYS   the locks
-- ARGV   task id, generation of the attempt to come, '1' if the message needs no second run,
--        then for each key: token or '-', outcome ('free', 'done', 'queued', 'withdrawn'), ttl ms, 0 for ever,
--        what becomes of the count of deliveries ('forget', 'keep', 'undo')
-- reply  for each key: 1, or 0 where the slot was another's, or gone, already
local id, generation, well = ARGV[1], ARGV[2], ARGV[3] == '1'
local runs, results, reply = {}, {}, {}
-- Two locks may share a key and so a run: all are looked up before any is freed.
for i, key in ipairs(KEYS) do
  local token = ARGV[4 * i]
  runs[i], results[i] = find(load(key).r, 1, token), marked(load(key), '-', token)
end
local function count_at_end(record, token, wish)
  local held, part = find(record.r, 1, token), find(record.n, 1, id)
  if part and held and wish == 'undo' then part[3] = int(part[3] - 1) end
  if part and ((wish == 'forget' and (held or token == '-')) or part[3] == '0') then
    drop(record.n, 1, id)
  end
end

for i, key in ipairs(KEYS) do
  local token, outcome, ttl = ARGV[4 * i], ARGV[4 * i + 1], tonumber(ARGV[4 * i + 2])
  local record, run = load(key), runs[i]
  local held = run or token == '-'
  count_at_end(record, token, ARGV[4 * i + 3])
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
