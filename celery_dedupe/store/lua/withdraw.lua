-- Gives back what one task id has queued and, if asked, its running slots; its message is gone, and nothing
-- counts its deliveries any more. Other owners' parts stay.
-- KEYS   the locks
-- ARGV   task id, '1' to free running slots too
-- reply  nothing
for _, key in ipairs(KEYS) do
  local record = load(key)
  drop(record.q, 1, ARGV[1])
  drop(record.n, 1, ARGV[1])
  if ARGV[2] == '1' then drop(record.r, 2, ARGV[1]) end
end
save()
return {}
