"""Counts what befalls each task, in this process first: no task waits for its count to be written."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from celery_dedupe.buffer import Buffer
from celery_dedupe.core.counts import Counted, Counts


class Counting(Protocol):
    """What of a store is needed here."""

    def count(self, name: str, counts: Counts) -> None:
        """Add to what is counted under ``name``."""

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        """What was counted under ``name``."""


class Counters:
    """What this process has counted and the store has not been told yet, bounded by tasks times verdicts.

    Arguments:
        name: under which the store counts; ``""`` to count nothing.
    """

    def __init__(self, store: Counting, name: str) -> None:
        self._store = store
        self._name = name
        self._buffer: Buffer[Counter[tuple[str, str]]] | None = None
        if name:
            self._buffer = Buffer(Counter, lambda counts: store.count(name, counts), Counter.update)

    def add(self, task: str, what: Counted) -> None:
        """Count one. Never raises, and asks nobody."""
        if self._buffer is not None:
            self._buffer.add(lambda counts: counts.update({(task, what): 1}))

    def read(self, since: int | None = None) -> Counts:
        """What all processes have told the store; see ``Store.counts``."""
        return self._store.counts(self._name, since)

    def flush(self) -> None:
        """Tell the store now: this process may not come to the end of its interpreter."""
        if self._buffer is not None:
            self._buffer.flush()

    def close(self) -> None:
        """Tell the store for the last time."""
        if self._buffer is not None:
            self._buffer.close()
