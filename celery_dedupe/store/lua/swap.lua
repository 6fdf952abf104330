-- Puts one text in the place of another.
-- KEYS   a hash that holds a text
-- ARGV   the text as it was seen, the new one, its ttl ms
-- reply  1, or 0 where another is there by now
if (redis.call('HGET', KEYS[1], 'text') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'text', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
