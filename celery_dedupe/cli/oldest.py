"""Puts in order what may be too much for memory."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from operator import itemgetter
from typing import IO, Any, TypeVar

T = TypeVar("T")
Aged = tuple[Any, T]  # what it is ordered by, and what it is

AT_ONCE = 50_000  # that many are sorted in memory; more are kept on disk in sorted runs, and merged
BATCH = 500


def oldest_first(items: Iterable[Aged[T]], at_once: int = AT_ONCE) -> Iterator[Aged[T]]:
    """Every item, lowest first, one of each order. All are read before the first is given."""
    rest = iter(items)
    with ExitStack() as files:
        runs: list[Iterable[Aged[T]]] = []
        while run := sorted(islice(rest, at_once), key=itemgetter(0)):
            if len(run) == at_once:
                file = files.enter_context(tempfile.TemporaryFile())
                runs.append(_on_disk(run, file))
            else:
                runs.append(run)
        last = None
        for order, item in heapq.merge(*runs, key=itemgetter(0)):
            if order != last:
                yield order, item
            last = order


def _on_disk(run: Sequence[Aged[T]], file: IO[bytes]) -> Iterator[Aged[T]]:
    for place in range(0, len(run), BATCH):
        pickle.dump(run[place : place + BATCH], file)
    file.seek(0)
    return _read(file, len(run))


def _read(file: IO[bytes], count: int) -> Iterator[Aged[T]]:
    for _ in range(0, count, BATCH):
        yield from pickle.load(file)
