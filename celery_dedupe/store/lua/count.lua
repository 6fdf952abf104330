-- Adds to counts.
-- KEYS   hashes of counts: the hour's, and those of all time
-- ARGV   ttl ms, then for each count: field, how much more
for _, key in ipairs(KEYS) do
  for i = 2, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
  redis.call('PEXPIRE', key, ARGV[1])
end
