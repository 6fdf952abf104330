"""The stores of an app by their names, asked as one: a lock's key tells which of them it lives in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

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
from celery_dedupe.core.counts import Counts
from celery_dedupe.core.places import DEFAULT, place_of, placed
from celery_dedupe.core.record import Record
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store import apart
from celery_dedupe.store.apart import Ask, Group, grouped
from celery_dedupe.store.breaker import Breaker
from celery_dedupe.store.protocol import NO_SLOTS, Store

T = TypeVar("T")


class Place:
    """One store, whose keys are as the others know them, behind a breaker of its own.

    What it raises tells its name (``StoreUnavailable.store``). The heartbeat and operators pass the breaker
    by: the one is one call an interval, and a pause of 5 s would cost a short lease; the others ask on
    purpose.
    """

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store
        self.breaker = Breaker(name)

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        return self.ask(lambda: self.store.claim(_bare(asks), caller))

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        bare = [place_of(key)[1] for key in keys]
        mine = {place_of(key)[1]: slots[key] for key in keys if key in slots}
        self.ask(lambda: self.store.withdraw(bare, task_id, running=running, slots=mine))

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        return self.ask(lambda: self.store.begin(_bare(asks), attempt))

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        return self.ask(lambda: self.store.finish(_bare(asks), attempt, well=well))

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        return self._named(lambda: self.store.renew(_bare(asks)))

    def read(self, key: str) -> Record:
        return self._named(lambda: self.store.read(place_of(key)[1]))

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        for key, record in self.store.scan(pattern):
            yield placed(key, self.name), record

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        return self._named(lambda: self.store.evict(_bare(asks)))

    def clock(self) -> int:
        return self._named(self.store.clock)

    def facts(self) -> StoreFacts:
        return self._named(self.store.facts)

    def ask(self, verb: Callable[[], T]) -> T:
        """What ``verb()`` returns, which asks the store for something."""
        return self._named(lambda: self.breaker.call(verb))

    def _named(self, verb: Callable[[], T]) -> T:
        try:
            return verb()
        except StoreUnavailable as error:
            error.store = self.name
            raise


class Stores:
    """All stores of an app. A list of locks in one store is asked in one round trip, all or nothing.

    Locks in several are asked store by store, see ``apart``. One that is known to be away is asked first, so
    that no other has to take back what it gave.

    Arguments:
        stores: by their names.
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self.places = {name: Place(name, store) for name, store in stores.items()}

    @property
    def open(self) -> bool:
        """Whether one of them failed at its last call."""
        return any(place.breaker.open for place in self.places.values())

    def place(self, key: str) -> Place:
        """Where a lock lives. Raises ``KeyError`` if the app has no such store."""
        return self.places[place_of(key)[0]]

    def split(self, keys: Iterable[str]) -> list[list[str]]:
        """The keys of each store; those of a store that the app does not have are left out."""
        apart: dict[str, list[str]] = {}
        for key in keys:
            apart.setdefault(place_of(key)[0], []).append(key)
        return [some for name, some in apart.items() if name in self.places]

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        return apart.claim(self._groups(asks), caller)

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        def one(some: list[str]) -> None:
            self.place(some[0]).withdraw(some, task_id, running=running, slots=slots)

        apart.each(one, self.split(keys))

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        groups = apart.rates_last(self._groups(asks))
        return apart.begin(sorted(groups, key=_answers), attempt)

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool | None]:
        """One answer each, as a store's; ``None`` where the store does not answer."""
        kept: dict[int, bool | None] = {}
        for group in self._groups(asks):
            try:
                replies: Sequence[bool | None] = group.store.renew(group.asks)
            except StoreUnavailable:
                replies = [None] * len(group.asks)
            kept.update(zip(group.places, replies, strict=True))
        return [kept[place] for place in sorted(kept)]

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        return apart.finish(self._groups(asks), attempt, well=well)

    def read(self, key: str) -> Record:
        return self.place(key).read(key)

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        name, bare = place_of(pattern)
        return self.places[name].scan(bare)

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        freed: dict[int, int] = {}
        for group in self._groups(asks):
            freed.update(zip(group.places, group.store.evict(group.asks), strict=True))
        return [freed[place] for place in sorted(freed)]

    def clock(self) -> int:
        return self.first.clock()

    def count(self, name: str, counts: Counts) -> None:
        self.first.store.count(name, counts)

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        return self.first.store.counts(name, since)

    def look(self, key: str) -> str:
        return self.first.store.look(key)

    def swap(self, key: str, before: str, after: str, ttl: int) -> bool:
        return self.first.store.swap(key, before, after, ttl)

    def close(self) -> None:
        for place in self.places.values():
            place.store.close()

    @property
    def first(self) -> Place:
        """Where what is no claim lives: the default store, else the first."""
        return self.places.get(DEFAULT) or next(iter(self.places.values()))

    def _groups(self, asks: Sequence[Ask]) -> list[Group[Ask]]:
        groups = grouped(asks, lambda key: place_of(key)[0], self.places.__getitem__)
        return sorted(groups, key=_answers)


def _answers(group: Group[Any]) -> bool:
    place: Place = group.store
    return not place.breaker.open


def _bare(asks: Sequence[Any]) -> list[Any]:
    pairs = ((ask, place_of(ask.key)[1]) for ask in asks)
    return [ask if ask.key == bare else replace(ask, key=bare) for ask, bare in pairs]
