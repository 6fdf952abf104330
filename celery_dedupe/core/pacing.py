"""How starts are spaced under a rate: which are free at once, which slot in the future the others get.

Pure. Times are microseconds of the store's clock. ``store/lua/pacing.lua`` is the same inside Redis.

- No window has more starts than the rate allows, whatever else happens: each is checked against those before.
- Nobody waits as long as the window has room and no promised slot is still to come.
- Who waits is promised a slot of his own, one gap behind the last promised one, or one that was given back.
  At his slot only the starts before him count.
- Where slots have passed for long and nobody came (a queue was purged), the promises are void. So are they if
  the rate was raised, for that is for those who wait, too. So is all that is known if the clock was set back.
- Whose promise is void by now comes like anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from celery_dedupe.core.asks import BeginAsk, Later, RateAsk
from celery_dedupe.core.parts import Pace
from celery_dedupe.core.rates import MOST
from celery_dedupe.core.record import Record

_NOTHING = Pace((), 0, 0, 0, (), 0)
AHEAD = 1_250_000  # A start is booked by ``verdicts.PATIENCE`` ahead at most; a clock may be set by a little.


class Answer(NamedTuple):
    """When a run may start, and whether it may take that start now. ``pace`` has what is promised to it."""

    at: int
    free: bool
    pace: Pace


def begin(book: dict[str, Record], asks: Sequence[BeginAsk], now: int) -> int | Later:
    """In how many ms all rates of a run let it start, which is noted in ``book``; or what they promise.

    Where one rate promises a slot and another does not, the promised one is what the run waits for.
    """
    rated = [(index, ask.key, ask.rate) for index, ask in enumerate(asks) if ask.rate]
    answers = [answer(book[key].pace, rate, now) for _, key, rate in rated]
    paired = list(zip(rated, answers, strict=True))
    late = [(rate.reserves, one.at, index) for (index, _, rate), one in paired if not one.free]
    if not late:
        at = max((one.at for one in answers), default=now)
        for (_, key, rate), one in paired:
            book[key] = replace(book[key], pace=started(one.pace, rate, at))
        return _ms(at - now)
    slots = [0] * len(asks)
    for (index, key, rate), one in paired:
        if one.free:
            slots[index] = rate.slot
        else:
            book[key] = replace(book[key], pace=one.pace if one.pace.expires_at else None)
            slots[index] = one.at if rate.reserves else 0
    _, at, longest = max(late)
    return Later(longest, _ms(at - now), tuple(slots))


def answer(known: Pace | None, ask: RateAsk, now: int) -> Answer:
    """When a run may start under a rate, and what is promised to it if that is not now."""
    pace = _heard(known or _NOTHING, ask, now)
    free = _room(pace, ask, now)
    soon = now + ask.patience
    slot = ask.slot if ask.slot <= max(pace.tail, soon) else 0
    if slot and max(free, slot) <= soon:
        return Answer(max(free, slot), True, pace)
    if slot > soon:
        return Answer(slot, False, pace)
    if pace.tail <= now and free <= soon:
        return Answer(free, True, pace)
    slot, promised = _promise(pace, ask, free, now)
    if max(free, slot) <= soon:
        return Answer(max(free, slot), True, promised)
    return Answer(slot, False, promised if ask.reserves else pace)


def started(pace: Pace, ask: RateAsk, at: int) -> Pace:
    """The pace with a start at ``at``."""
    window = max(pace.window, ask.window)
    starts = (*(start for start in pace.starts if start > at - window), at)
    return _lasting(replace(pace, starts=starts[-MOST:], window=window), ask, at)


def given_back(pace: Pace, slot: int, now: int) -> Pace:
    """The pace without a promise whose run does not come."""
    if not now < slot <= pace.tail or slot in pace.freed:
        return pace
    tail, freed = pace.tail, sorted((*pace.freed, slot))
    while freed and freed[-1] >= tail:
        freed.pop()
        tail -= pace.gap
    return replace(pace, tail=tail, freed=tuple(freed[:MOST]))


def _heard(pace: Pace, ask: RateAsk, now: int) -> Pace:
    """The pace without promises that are void by now."""
    last = pace.starts[-1] if pace.starts else 0
    if last > now + AHEAD:
        return _NOTHING
    if pace.tail > now and (now - last > ask.silence or (ask.reserves and _gap(ask) < pace.gap)):
        return replace(pace, tail=0, freed=())
    return replace(pace, freed=tuple(slot for slot in pace.freed if slot > now))


def _room(pace: Pace, ask: RateAsk, now: int) -> int:
    """The earliest time at which the window has room, never before an earlier start."""
    last = pace.starts[-1] if pace.starts else 0
    full = pace.starts[-ask.starts] + ask.window if len(pace.starts) >= ask.starts else 0
    return max(now, last, full)


def _promise(pace: Pace, ask: RateAsk, free: int, now: int) -> tuple[int, Pace]:
    gap = _gap(ask)
    if pace.freed:
        return pace.freed[0], replace(pace, freed=pace.freed[1:])
    slot = pace.tail + gap if pace.tail > now else max(free, pace.tail + gap)
    return slot, _lasting(replace(pace, tail=slot, gap=gap), ask, slot)


def _gap(ask: RateAsk) -> int:
    return -(-ask.window // ask.starts)


def _lasting(pace: Pace, ask: RateAsk, at: int) -> Pace:
    return replace(pace, expires_at=max(pace.expires_at, (at + ask.window) // 1000 + 1))


def _ms(micros: int) -> int:
    return -(-micros // 1000)
