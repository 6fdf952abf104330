"""Locks of one task that live apart: asked group by group, and what earlier groups gave is given back.

Each group by itself is as safe as its store. A list of groups is less than atomic: in between a grant and its
giving back a third caller can be refused by a claim that is about to vanish. If this process dies in between,
the claim ends with its ttl, the slot with its lease. A queued claim of the same task id that an earlier group
has replaced or ended is not restored. None of this lets two runs into one slot. A start that is counted under
a rate stays counted, whatever a later group says; so rates come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Begun,
    Caller,
    ClaimAsk,
    EvictAsk,
    Exceeded,
    FinishAsk,
    Later,
    LeaseAsk,
    Over,
    Redelivered,
    Refused,
)
from celery_dedupe.errors import StoreUnavailable

T = TypeVar("T")
Item = TypeVar("Item")
Ask = TypeVar("Ask", ClaimAsk, BeginAsk, FinishAsk, LeaseAsk, EvictAsk)


@dataclass(frozen=True, slots=True)
class Group(Generic[Ask]):
    """Asks that one store, or one server of it, answers together; ``places`` are theirs in the whole list."""

    store: Any
    places: list[int]
    asks: list[Ask]

    @property
    def keys(self) -> list[str]:
        """The keys, each once."""
        return list(dict.fromkeys(ask.key for ask in self.asks))


def grouped(asks: Sequence[Ask], by: Callable[[str], Any], store: Callable[[Any], Any]) -> list[Group[Ask]]:
    """The asks of each group, in the order in which they come first.

    Arguments:
        by: gives what names the group of a key.
        store: gives who answers the group of that name.
    """
    groups: dict[Any, Group[Ask]] = {}
    for place, ask in enumerate(asks):
        name = by(ask.key)
        group = groups.get(name) or groups.setdefault(name, Group(store(name), [], []))
        group.places.append(place)
        group.asks.append(ask)
    return list(groups.values())


def rates_last(groups: Sequence[Group[BeginAsk]]) -> list[Group[BeginAsk]]:
    """The groups in the order in which to begin."""
    return sorted(groups, key=lambda group: any(ask.rate for ask in group.asks))


def claim(groups: Sequence[Group[ClaimAsk]], caller: Caller) -> Refused | None:
    """Claim all, or give back what was claimed. Raises ``StoreUnavailable`` if a group does."""
    for number, group in enumerate(groups):
        try:
            reply = group.store.claim(group.asks, caller)
        except StoreUnavailable:
            # It may have claimed before the connection was lost.
            with suppress(StoreUnavailable):
                _withdraw([group], caller)
            _withdraw(groups[:number], caller)
            raise
        if reply:
            _withdraw(groups[:number], caller)
            return Refused(group.places[reply.index], reply.holders)
    return None


def begin(groups: Sequence[Group[BeginAsk]], attempt: Attempt) -> BeginReply:
    """Begin all, or free what was begun, with queued claims as one store would have them after a refusal."""
    fences: dict[int, int] = {}
    delay = 0
    for number, group in enumerate(groups):
        try:
            reply = group.store.begin(group.asks, attempt)
        except StoreUnavailable:
            with suppress(StoreUnavailable):
                _give_back(groups, number + 1, attempt)
            raise
        if not isinstance(reply, Begun):
            wait = reply.wait if isinstance(reply, Later) else 0
            refused = isinstance(reply, (Refused, Later))
            _give_back(groups, number, attempt, refused=refused, wait=wait, answered=number)
            return _replaced(reply, group.places, sum(len(group.asks) for group in groups))
        fences.update(zip(group.places, reply.fences, strict=True))
        delay = max(delay, reply.delay)
    return Begun(tuple(fences[place] for place in sorted(fences)), delay)


def finish(groups: Sequence[Group[FinishAsk]], attempt: Attempt, *, well: bool) -> list[bool]:
    """Free all that answer before the first failure is raised."""
    replies = each(lambda group: group.store.finish(group.asks, attempt, well=well), groups)
    found: dict[int, bool] = {}
    for group, reply in zip(groups, replies, strict=True):
        found.update(zip(group.places, reply, strict=True))
    return [found[place] for place in sorted(found)]


def each(call: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
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


def _withdraw(groups: Sequence[Group[ClaimAsk]], caller: Caller) -> None:
    each(lambda group: group.store.withdraw(group.keys, caller.task_id), groups)


def _give_back(
    groups: Sequence[Group[BeginAsk]],
    begun: int,
    attempt: Attempt,
    *,
    refused: bool = True,
    wait: int = 0,
    answered: int | None = None,
) -> None:
    """Free what the first ``begun`` groups gave; after a refusal hold or drop the queued claims of all.

    The group ``answered`` has done so itself.
    """

    def back(numbered: tuple[int, Group[BeginAsk]]) -> None:
        number, group = numbered
        if number == answered:
            return
        asks = []
        for key in group.keys:
            some = [ask for ask in group.asks if ask.key == key]
            hold = max(ask.hold + wait if ask.hold else 0 for ask in some)
            token = attempt.token if number < begun and any(ask.slot for ask in some) else ""
            if refused:
                outcome = "queued" if hold else "withdrawn"
                asks.append(FinishAsk(key, token, outcome, hold, "undo" if token else "keep"))
            elif token:
                asks.append(FinishAsk(key, token, "free", deliveries="undo"))
        if asks:
            group.store.finish(asks, attempt, well=False)

    each(back, enumerate(groups))
