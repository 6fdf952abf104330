-- The server's clock: no client's clock is ever asked.
-- now   milliseconds since 1970
-- tick  microseconds since 1970, the least a fence can be
local clock = redis.call('TIME')
local tick = clock[1] * 1000000 + clock[2]
local now = math.floor(tick / 1000)
