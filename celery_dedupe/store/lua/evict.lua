-- An operator's release: frees queued and done parts, and running slots if asked.
-- KEYS   the locks
-- ARGV   '1' to free running slots too
-- reply  how many parts were freed
local freed = 0
for _, key in ipairs(KEYS) do
  local record = load(key)
  freed = freed + #record.q + (record.d and 1 or 0)
  record.q, record.d = {}, nil
  if ARGV[1] == '1' then
    freed = freed + #record.r
    record.r, record.e, record.t = {}, {}, {}
  end
end
save()
return freed
