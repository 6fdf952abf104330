"""What the claim call costs, against one ``SET NX PX`` by the same client."""

from __future__ import annotations

from itertools import count

import redis

from celery_dedupe.core.asks import Caller, ClaimAsk
from celery_dedupe.store.connect import open_store
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.lanes import Work, in_turn, lanes

HOUR = 3_600_000
UUID = "0b1c2d3e-4f50-4a61-8b72-{:012}"
KEY = "dedupe:reports.make:{:032}"


def row(setting: Setting) -> list[Figure]:
    with setting.server() as server:
        makers = {
            "claim": (make_claim, server.store_url),
            "refused": (make_refused, server.store_url),
            "three": (make_three, server.store_url),
            "set": (make_set, server.store_url),
        }
        with lanes(makers) as contenders:
            found = in_turn(contenders, setting.rounds * 3)
    return [
        ratio("a claim granted, against `SET NX PX`", found["claim"], found["set"], at_most=1.5),
        ratio("three claims in one call, granted, against one `SET NX PX`", found["three"], found["set"]),
        ratio("a claim refused, against `SET NX PX`", found["refused"], found["set"], at_most=1.5),
    ]


def make_claim(url: str, first: int = 0, locks: int = 1) -> Work:
    store = open_store(url)
    blocked_by = frozenset({"queued", "running"})

    def claim(number: int) -> None:
        asks = [ClaimAsk(KEY.format(number * locks + lock), HOUR, blocked_by) for lock in range(locks)]
        if store.claim(asks, Caller(UUID.format(number))) is not None:
            raise RuntimeError("a claim of a new key was refused")

    return "claim(next(numbers))", {"claim": claim, "numbers": count(first)}


def make_three(url: str) -> Work:
    return make_claim(url, 10**12, 3)


def make_refused(url: str) -> Work:
    store = open_store(url)
    asks = [ClaimAsk(KEY.format(10**20), HOUR, frozenset({"queued", "running"}))]
    store.claim(asks, Caller(UUID.format(1)))
    return "claim(asks, caller)", {"claim": store.claim, "asks": asks, "caller": Caller(UUID.format(2))}


def make_set(url: str, first: int = 0) -> Work:
    client = redis.Redis.from_url(url)

    def lock(number: int) -> None:
        if not client.set(f"set:{KEY.format(number)}", UUID.format(number), nx=True, px=HOUR):
            raise RuntimeError("a new key was there already")

    return "lock(next(numbers))", {"lock": lock, "numbers": count(first)}
