"""What a Redis or Valkey server says of itself (the INFO command), as far as it lets this client ask."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.store.redis_text import text

KEEPS_ALL = "noeviction"


def read_facts(client: Any) -> StoreFacts:
    """Ask ``client``; a cluster answers for one node of it, but for the size. Raises what redis-py does."""
    try:
        info = {text(name): value for name, value in client.info().items()}
    except ResponseError:
        return StoreFacts("a Redis that does not tell of itself (INFO is not allowed)")
    server = text(info.get("server_name", "redis"))
    version = text(info.get(f"{server}_version") or info.get("redis_version") or "")
    policy = text(info.get("maxmemory_policy", ""))
    full = int(info.get("maxmemory") or 0) > 0 and policy not in ("", KEEPS_ALL)
    appends = info.get("aof_enabled")
    return StoreFacts(
        f"{server} {version}".strip(),
        evicts=policy if full else "",
        persists=None if appends is None else bool(int(appends)),
        writable=text(info.get("role", "master")) == "master",
        size=_size(client),
    )


def _size(client: Any) -> int | None:
    try:
        return int(client.dbsize())  # of a cluster: of all its primaries
    except ResponseError:
        return None
