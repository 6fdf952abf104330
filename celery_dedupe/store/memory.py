"""Claims in this process' memory: for unit tests, eager code and single-process workers."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from celery_dedupe.core import transitions
from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    EvictAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)
from celery_dedupe.core.counts import HOUR, Counts, hours, total
from celery_dedupe.core.record import Record
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.store.protocol import NO_SLOTS

_EPOCH = time.time_ns() - time.perf_counter_ns()


def _clock() -> int:
    # The wall clock as it was at import, and steady from then on: a lease must not jump with it.
    return (_EPOCH + time.perf_counter_ns()) // 1000


class MemoryStore:
    """The verbs of ``Store`` over a dictionary and a lock. A forked child has a copy of its own.

    Arguments:
        clock: gives the time in microseconds; tests hand in one they can turn.
    """

    def __init__(self, clock: Callable[[], int] = _clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}
        self._full = 1000
        self._counts: dict[tuple[str, int | None], dict[tuple[str, str], int]] = {}
        self._texts: dict[str, tuple[str, int]] = {}

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        with self._lock:
            reply, changes = transitions.claim(self._records, asks, caller, self._clock())
            self._write(changes)
        return reply

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        with self._lock:
            self._write(transitions.withdraw(self._records, keys, task_id, running, slots, self._clock()))

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        with self._lock:
            reply, changes = transitions.begin(self._records, asks, attempt, self._clock())
            self._write(changes)
        return reply

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        with self._lock:
            kept, changes = transitions.renew(self._records, asks, self._clock())
            self._write(changes)
        return kept

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        with self._lock:
            found, changes = transitions.finish(self._records, asks, attempt, well, self._clock())
            self._write(changes)
        return found

    def read(self, key: str) -> Record:
        with self._lock:
            return self._records.get(key, transitions.EMPTY).live(self.clock())

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        with self._lock:
            found = [key for key in self._records if fnmatch.fnmatchcase(key, pattern)]
        for key in found:
            if record := self.read(key):
                yield key, record

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        with self._lock:
            freed, changes = transitions.evict(self._records, asks, self._clock())
            self._write(changes)
        return freed

    def count(self, name: str, counts: Counts) -> None:
        with self._lock:
            now = self.clock()
            kept = (None, *hours(0, now))
            self._counts = {place: held for place, held in self._counts.items() if place[1] in kept}
            for place in ((name, now // HOUR), (name, None)):
                parts = (*self._counts.get(place, {}).items(), *counts.items())
                self._counts[place] = total(parts)

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        with self._lock:
            places = (None,) if since is None else hours(since, self.clock())
            return total(part for hour in places for part in self._counts.get((name, hour), {}).items())

    def look(self, key: str) -> str:
        with self._lock:
            return self._text(key)

    def swap(self, key: str, before: str, after: str, ttl: int) -> bool:
        with self._lock:
            same = self._text(key) == before
            if same:
                self._texts[key] = after, self.clock() + ttl
            return same

    def clock(self) -> int:
        return self._clock() // 1000

    def facts(self) -> StoreFacts:
        return StoreFacts(
            "this process' memory",
            shared=False,
            evicts="",
            persists=False,
            writable=True,
            size=len(self._records),
        )

    def close(self) -> None:
        self._records.clear()

    def _text(self, key: str) -> str:
        text, expires_at = self._texts.get(key, ("", 0))
        return text if expires_at > self.clock() else ""

    def _write(self, changes: Mapping[str, Record]) -> None:
        for key, record in changes.items():
            if record:
                self._records[key] = record
            else:
                self._records.pop(key, None)
        if len(self._records) > self._full:
            self._sweep()

    def _sweep(self) -> None:
        # Records of keys that are never asked for again. Room to double keeps its cost small for each write.
        now = self.clock()
        self._records = {key: record for key, record in self._records.items() if record.live(now)}
        self._full = max(1000, 2 * len(self._records))
