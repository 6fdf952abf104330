"""500 callers in 8 processes: for one key, and for many, each of which several want at once."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import redis

from celery_dedupe.core.asks import Caller, ClaimAsk
from celery_dedupe.store.connect import open_store
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.rows.claim import HOUR, KEY, UUID

CALLERS = (66, 62, 62, 62, 62, 62, 62, 62)  # threads of each process: 500
RIVALS = 2  # how many callers want each of many keys
_spawn = multiprocessing.get_context("spawn")
Take = Callable[[str, str], bool]


def row(setting: Setting) -> list[Figure]:
    rounds, some = setting.rounds, max(setting.of(100_000) // setting.rounds, 1)
    alone, won, twice = 0, 0, 0
    rates: dict[str, list[float]] = {"claim": [], "set": []}
    with setting.server() as server, _crowd(server.store_url) as storm:
        for number in range(rounds):
            winners, _ = storm("claim", 1, f"one{number}")
            alone += list(winners.values()) == [1]
            for how, found in rates.items():
                winners, took = storm(how, some, f"{how}{number}")
                found.append(some * RIVALS / took)
                if how == "claim":
                    won += len(winners)
                    twice += sum(many > 1 for many in winners.values())
    asked = some * rounds
    return [
        Figure(
            "500 callers in 8 processes for one key: rounds with exactly one winner",
            f"{alone} of {rounds}", goal="all", met=alone == rounds,
        ),
        Figure(
            f"the same for {asked:,} keys, each wanted by {RIVALS} at once: keys with exactly one winner",
            f"{won - twice:,}", goal="all", met=won == asked and not twice,
        ),
        ratio(
            "the same: calls a second, against `SET NX PX`", rates["claim"], rates["set"],
            unit=lambda calls: f"{calls:,.0f}/s",
        ),
    ]  # fmt: skip


@contextmanager
def _crowd(url: str) -> Iterator[Callable[[str, int, str], tuple[Counter[int], float]]]:
    """``storm(how, keys, name)`` lets all callers loose on so many keys: who won how often, in what time."""
    ends = [_spawn.Pipe() for _ in CALLERS]
    processes = [
        _spawn.Process(target=_serve, args=(there, url, place), daemon=True)
        for place, (_, there) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    lines = [here for here, _ in ends]

    def storm(how: str, keys: int, name: str) -> tuple[Counter[int], float]:
        _say(lines, (how, keys, name))
        for line in lines:
            line.recv()  # All callers are at their marks.
        started = time.perf_counter()
        _say(lines, "go")
        winners = Counter(key for line in lines for key in line.recv())
        return winners, time.perf_counter() - started

    try:
        yield storm
    finally:
        for process in processes:
            process.kill()


def _say(lines: list[Connection], word: Any) -> None:
    for line in lines:
        line.send(word)


def _serve(line: Connection, url: str, place: int) -> None:
    takes = {"claim": _claiming(url), "set": _setting(url)}
    while True:
        how, keys, name = line.recv()
        line.send(_let_loose(takes[how], keys, name, place, line))


def _let_loose(take: Take, keys: int, name: str, place: int, line: Connection) -> list[int]:
    ready, go = threading.Barrier(CALLERS[place] + 1), threading.Event()
    won: list[int] = []

    def call(thread: int) -> None:
        caller = UUID.format(place * 1000 + thread)
        take(f"warm:{caller}", caller)  # So that it has a connection.
        ready.wait()
        go.wait()
        wanted = range(1) if keys == 1 else _share(keys, place, thread)
        won.extend(key for key in wanted if take(f"{name}:{KEY.format(key)}", caller))

    callers = [threading.Thread(target=call, args=(thread,)) for thread in range(CALLERS[place])]
    for caller in callers:
        caller.start()
    ready.wait()
    line.send("ready")
    line.recv()
    go.set()
    for caller in callers:
        caller.join()
    return won


def _share(keys: int, place: int, thread: int) -> range:
    """Each key falls to RIVALS processes, and there to one thread."""
    group, groups, threads = place // RIVALS, len(CALLERS) // RIVALS, min(CALLERS)
    first = thread * groups + group
    return range(first, keys, threads * groups) if thread < threads else range(0)


def _claiming(url: str) -> Take:
    store = open_store(url, {"socket_timeout": 30})
    blocked_by = frozenset({"queued", "running"})
    return lambda key, caller: store.claim([ClaimAsk(key, HOUR, blocked_by)], Caller(caller)) is None


def _setting(url: str) -> Take:
    client = redis.Redis.from_url(url)
    return lambda key, caller: bool(client.set(key, caller, nx=True, px=HOUR))
