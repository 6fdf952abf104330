"""What a claim takes in the server's memory, by ``MEMORY USAGE``."""

from __future__ import annotations

import secrets
import time
from contextlib import closing

import redis

from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk
from celery_dedupe.store.connect import open_store
from tests.benchmarks.figures import Figure, Setting
from tests.benchmarks.rows.claim import HOUR, KEY, UUID


def row(setting: Setting) -> list[Figure]:
    with setting.server() as server, closing(open_store(server.store_url)) as store:
        key, client = KEY.format(1), server.client()
        store.claim([ClaimAsk(key, HOUR, frozenset({"queued"}))], Caller(UUID.format(1)))
        queued = _usage(client, key)
        ask = BeginAsk(key, slot=True, limit=1, lease=60_000, hold=HOUR, mark=HOUR)
        attempt = Attempt(
            UUID.format(1), secrets.token_hex(8), secrets.token_hex(4), 0, "celery@host-1",
            int(time.time() * 1000),
        )  # fmt: skip
        store.begin([ask], attempt)
        running = _usage(client, key)
        store.claim([ClaimAsk(key, HOUR, frozenset({"queued"}))], Caller(UUID.format(2)))
        both = _usage(client, key)
        client.set("plain", UUID.format(1), px=HOUR)
        bare = _usage(client, "plain")
    title = f"a claim under a key of {len(key)} characters with ids of 36"
    return [
        _figure(f"{title}, queued", queued, 250),
        _figure(f"{title}, running", running, 350),
        _figure(f"{title}, one running and one queued", both, None),
        _figure("`SET plain ID PX`, for comparison", bare, None),
    ]


def _usage(client: redis.Redis, key: str) -> int:
    return int(client.execute_command("MEMORY", "USAGE", key))


def _figure(what: str, found: int, at_most: int | None) -> Figure:
    goal = f"at most {at_most} bytes" if at_most else ""
    return Figure(what, f"{found} bytes", goal=goal, met=found <= at_most if at_most else None)
