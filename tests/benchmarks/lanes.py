"""One process for each contender, timed in turn: A B A B, so that what slows the machine slows them all.

A process of its own, since signals, imports and garbage of one contender would slow the others.
"""

from __future__ import annotations

import gc
import multiprocessing
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

Work = tuple[str, dict[str, Any]]  # a statement, and the names that it uses
Maker = Callable[..., Work]
SHORTEST = 0.02  # seconds that one turn takes at least, so that a clock's tick is nothing in it
WARM = 3  # runs before the first turn: imports, connections, scripts

_spawn = multiprocessing.get_context("spawn")


class Lane:
    """A contender's process.

    Arguments:
        make: a function of a module, called with ``args`` in the process; makes what is timed.
    """

    def __init__(self, make: Maker, *args: Any) -> None:
        self._here, there = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(there, make, args), daemon=True)
        self._process.start()
        there.close()
        self._answer()

    def time(self, times: int) -> float:
        """Seconds that the statement takes, one of ``times`` runs in a row."""
        self._here.send(times)
        return float(self._answer()) / times

    def close(self) -> None:
        self._here.close()
        self._process.join(10)
        self._process.kill()

    def _answer(self) -> Any:
        answer = self._here.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


@contextmanager
def lanes(makers: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Lane]]:
    """Lanes of ``(make, *args)`` by name; ended with the block."""
    opened: dict[str, Lane] = {}
    try:
        for name, (make, *args) in makers.items():
            opened[name] = Lane(make, *args)
        yield opened
    finally:
        for lane in opened.values():
            lane.close()


def in_turn(contenders: Mapping[str, Lane], rounds: int) -> dict[str, list[float]]:
    """Seconds a run of each contender, one number a round."""
    times = {name: _enough(lane) for name, lane in contenders.items()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, lane in contenders.items():
            found[name].append(lane.time(times[name]))
    return found


def _enough(lane: Lane) -> int:
    times = 1
    while (took := lane.time(times) * times) < SHORTEST:
        times = max(times * 2, int(times * SHORTEST / max(took, 1e-7)))
    return times


def _serve(there: Connection, make: Maker, args: tuple[Any, ...]) -> None:
    try:
        statement, names = make(*args)
        timer = timeit.Timer(statement, "enable_gc()", globals={**names, "enable_gc": gc.enable})
        timer.timeit(WARM)
        there.send(None)
        while True:
            there.send(timer.timeit(there.recv()))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the answer is told
        there.send(error)
