-- reply  the server's clock, milliseconds since 1970
return int(now)
