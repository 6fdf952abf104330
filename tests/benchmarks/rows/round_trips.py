"""How many commands the store receives for a publish, a duplicate, a start and an end: MONITOR tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from tests.benchmarks.contenders import DEFAULT, THREE
from tests.benchmarks.figures import Figure, Setting
from tests.benchmarks.lanes import lanes
from tests.benchmarks.rows.publish import make_duplicate, make_new
from tests.benchmarks.workers import BatchWorker
from tests.harness.commands import count_commands
from tests.harness.servers import STORE, ValkeyServer

TIMES = 20
RULES = {"one policy": DEFAULT, "three policies": THREE}


def row(setting: Setting) -> list[Figure]:
    figures = []
    for name, rules in RULES.items():
        with setting.server() as server:
            makers = {
                "a publish": (make_new, "ours", server.address, rules, True),
                "a duplicate": (make_duplicate, "ours", server.address, rules, True),
            }
            with lanes(makers) as contenders:
                for what, lane in contenders.items():
                    trips = _commands(server, lambda lane=lane: lane.time(TIMES))
                    figures.append(_figure(f"{what}, {name}", trips, 1))
            with closing(BatchWorker(setting, server, "ours", pool="solo", rules=rules)) as worker:
                worker.fill(TIMES)
                worker.drain()  # The scripts are known and the connection is there.
                worker.fill(TIMES)
                trips = _commands(server, worker.drain)
            figures.append(_figure(f"a start and an end together, {name}", trips, 2))
    return figures


def _figure(what: str, trips: int, goal: int) -> Figure:
    found = trips / TIMES
    return Figure(f"round trips of {what}", f"{found:g}", goal=f"{goal}", met=found == goal)


def _commands(server: ValkeyServer, do: Callable[[], object]) -> int:
    with count_commands(server) as seen:
        do()
    return len(seen.of(db=STORE))
