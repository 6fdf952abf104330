"""Claims in a cluster, where two locks of one task may live on two servers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from redis.cluster import RedisCluster

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Begun,
    Caller,
    ClaimAsk,
    Exceeded,
    FinishAsk,
    Later,
    LeaseAsk,
    Over,
    Redelivered,
    Refused,
)
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.protocol import NO_SLOTS
from celery_dedupe.store.redis import RedisStore

T = TypeVar("T")
Ask = TypeVar("Ask", ClaimAsk, BeginAsk, FinishAsk)


class ClusterStore(RedisStore):
    """The verbs of ``Store`` in a cluster: one script a key, in the order of the list.

    Each lock by itself is as safe as in ``RedisStore``. A list of locks is less than atomic: if a later lock
    refuses, what the earlier ones gave is given back, and in between a third caller can be refused by a claim
    that is about to vanish. If this process dies in between, the claim ends with its ttl, the slot with its
    lease. A queued claim of the same task id that an earlier lock has replaced or ended is not restored. None
    of this lets two runs into one slot. A start that a later rate refuses stays counted under an earlier one.

    Where one server does not answer, the others are still given their renewals and releases before the error.

    Arguments:
        connect: makes the client; asked on first use and until it succeeds, since redis-py fetches the slots
            of the cluster while it makes one.
        owned: ``close`` closes the client too.
    """

    chunk = 1

    def __init__(self, connect: Callable[[], RedisCluster], *, owned: bool = True) -> None:
        self._connect = connect
        self._owned = owned

    @cached_property
    def _client(self) -> Any:
        return self._connect()

    def close(self) -> None:
        if "_client" in self.__dict__:
            super().close()

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        given: list[str] = []
        for places, some in _by_key(asks):
            try:
                reply = super().claim(some, caller)
            except StoreUnavailable:
                # It may have claimed before the connection was lost.
                with suppress(StoreUnavailable):
                    self.withdraw([*given, some[0].key], caller.task_id)
                raise
            if reply:
                self.withdraw(given, caller.task_id)
                return replace(reply, index=places[reply.index])
            given.append(some[0].key)
        return None

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        one = super().withdraw
        _all(lambda key: one([key], task_id, running=running, slots=slots), keys)

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        fences, delay = [0] * len(asks), 0
        begun: set[str] = set()
        # Rates come last: a start that is counted stays counted, whatever a lock says after it.
        for places, some in sorted(_by_key(asks), key=lambda group: any(ask.rate for ask in group[1])):
            try:
                reply = super().begin(some, attempt)
            except StoreUnavailable:
                with suppress(StoreUnavailable):
                    self._give_back(asks, {*begun, some[0].key}, attempt)
                raise
            if not isinstance(reply, Begun):
                wait = reply.wait if isinstance(reply, Later) else 0
                refused = isinstance(reply, (Refused, Later))
                self._give_back(asks, begun, attempt, refused=refused, wait=wait)
                return _replaced(reply, places, len(asks))
            begun.add(some[0].key)
            delay = max(delay, reply.delay)
            for place, fence in zip(places, reply.fences, strict=True):
                fences[place] = fence
        return Begun(tuple(fences), delay)

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        one = super().renew
        return [kept for reply in _all(lambda ask: one([ask]), asks) for kept in reply]

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        one = super().finish
        groups = _by_key(asks)
        found = [False] * len(asks)
        replies = _all(lambda group: one(group[1], attempt, well=well), groups)
        for (places, _), reply in zip(groups, replies, strict=True):
            for place, mine in zip(places, reply, strict=True):
                found[place] = mine
        return found

    def _give_back(
        self,
        asks: Sequence[BeginAsk],
        begun: Collection[str],
        attempt: Attempt,
        *,
        refused: bool = True,
        wait: int = 0,
    ) -> None:
        """Free what ``begin`` gave; after a refusal hold or drop the queued claims, as one script would."""
        back = []
        for _, some in _by_key(asks):
            key, hold = some[0].key, max(ask.hold + wait if ask.hold else 0 for ask in some)
            token = attempt.token if key in begun and any(ask.slot for ask in some) else ""
            if refused:
                outcome = "queued" if hold else "withdrawn"
                back.append(FinishAsk(key, token, outcome, hold, "undo" if token else "keep"))
            elif token:
                back.append(FinishAsk(key, token, "free", deliveries="undo"))
        self.finish(back, attempt, well=False)


def _replaced(
    reply: Refused | Redelivered | Exceeded | Later | Over, places: list[int], n: int
) -> BeginReply:
    """The reply to the asks at ``places`` of a list of ``n``, as one to the whole list."""
    if isinstance(reply, Over):
        return reply
    if isinstance(reply, Later):
        slots = [0] * n
        for place, slot in zip(places, reply.slots, strict=True):
            slots[place] = slot
        reply = replace(reply, slots=tuple(slots))
    return replace(reply, index=places[reply.index])


def _by_key(asks: Sequence[Ask]) -> list[tuple[list[int], list[Ask]]]:
    """The asks of each key, with their places in the list."""
    groups: dict[str, tuple[list[int], list[Ask]]] = {}
    for place, ask in enumerate(asks):
        places, some = groups.setdefault(ask.key, ([], []))
        places.append(place)
        some.append(ask)
    return list(groups.values())


def _all(call: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """What ``call`` returns for each item. Tries them all before it raises the first ``StoreUnavailable``."""
    replies: list[T] = []
    failure: StoreUnavailable | None = None
    for item in items:
        try:
            replies.append(call(item))
        except StoreUnavailable as error:  # noqa: PERF203 - each item may fail by itself
            failure = failure or error
    if failure is not None:
        raise failure
    return replies
