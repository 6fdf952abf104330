"""What a publish costs: of a new call, of a duplicate, of a task that no rule matches."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import redis

from tests.benchmarks.contenders import INSTALLED, TASK, THREE, make_app
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.lanes import Work, in_turn, lanes
from tests.harness.servers import STORE

UNMATCHED = {"mail.*": "once"}


def row(setting: Setting) -> list[Figure]:
    with setting.server() as server:
        found = _measure(setting, server.address, results=True)
        server.clear()
        bare = _measure(setting, server.address, results=False)
    plain = found["plain"]
    return [
        ratio("publish of a new call, against `delay()` of plain Celery", found["new"], plain, at_most=1.25),
        ratio("the same with three policies", found["three"], plain),
        ratio("plain `delay()` after one `SET NX PX`, the least that a lock costs", found["with set"], plain),
        ratio("the same without a result backend on either side", bare["new"], bare["plain"]),
        *(ratio(f"the same by {name}", found[f"{name}: new"], plain) for name in INSTALLED),
        ratio("a duplicate, against `delay()` of plain Celery", found["duplicate"], plain, at_most=0.7),
        ratio("the same without a result backend on either side", bare["duplicate"], bare["plain"]),
        *(
            ratio(f"a duplicate, against one of {name}", found["duplicate"], theirs, at_most=1.0)
            for name in INSTALLED
            if (theirs := found[f"{name}: duplicate"])
        ),
        ratio(
            "a publish that no rule matches, against `delay()` of plain Celery",
            found["unmatched"],
            plain,
            at_most=1.01,
        ),
    ]


def _measure(setting: Setting, server: str, *, results: bool) -> dict[str, list[float]]:
    makers: dict[str, tuple[Any, ...]] = {
        "plain": (make_new, "plain", server, None, results),
        "new": (make_new, "ours", server, None, results),
        "duplicate": (make_duplicate, "ours", server, None, results),
        "unmatched": (make_new, "ours", server, UNMATCHED, results),
    }
    if results:
        makers["three"] = (make_new, "ours", server, THREE, results)
        makers["with set"] = (make_with_set, server)
        for name in INSTALLED:
            makers[f"{name}: new"] = (make_new, name, server, None, results)
            makers[f"{name}: duplicate"] = (make_duplicate, name, server, None, results)
    with lanes(makers) as contenders:
        return in_turn(contenders, setting.rounds * 3)


def make_new(kind: str, server: str, rules: dict[str, Any] | None, results: bool) -> Work:
    task = make_app(kind, server, rules, results=results).tasks[TASK]
    customers = count(os.getpid() * 10**6)
    return "delay(next(customers), '2026', draft=True)", {"delay": task.delay, "customers": customers}


def make_with_set(server: str) -> Work:
    """The least that any lock can cost: what plain Celery does after one ``SET NX PX``."""
    delay = make_app("plain", server, queue="with-set").tasks[TASK].delay
    client = redis.Redis.from_url(f"{server}/{STORE}")
    customers = count(os.getpid() * 10**6)

    def call(customer: int) -> None:
        client.set(f"lock:{customer}", "taken", nx=True, px=3_600_000)
        delay(customer, "2026", draft=True)

    return "call(next(customers))", {"call": call, "customers": customers}


def make_duplicate(kind: str, server: str, rules: dict[str, Any] | None, results: bool) -> Work:
    task = make_app(kind, server, rules, results=results).tasks[TASK]
    task.delay(-1, "2026", draft=True)
    return "delay(-1, '2026', draft=True)", {"delay": task.delay}
