-- KEYS   a hash that holds a text, so that no scan for records comes upon it
-- reply  the text or nil
return redis.call('HGET', KEYS[1], 'text')
