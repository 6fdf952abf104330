-- Gives back what one task id has queued and, if asked, its running slots; its message is gone, and nothing
-- counts its deliveries any more. Other owners' parts stay.
-- KEYS   the locks
-- ARGV   task id, '1' to free running slots too, then for each key: what was promised under a rate, or 0
-- reply  nothing
for i, key in ipairs(KEYS) do
  local record = load(key)
  drop(record.q, 1, ARGV[1])
  drop(record.n, 1, ARGV[1])
  if record.s then give_back(record.s, tonumber(ARGV[2 + i])) end
  if ARGV[2] == '1' then drop(record.r, 2, ARGV[1]) end
end
save()
return {}
