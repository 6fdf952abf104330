"""Short ways to ask, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, ClaimAsk, FinishAsk, Refused
from celery_dedupe.core.holdings import STATES, evict_ask, holdings
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store

MINUTE = 60_000
SHORT = 30  # ms: a time to wait out


def claim(key: str, ttl: int = MINUTE, blocked_by: Collection[str] = ("queued",)) -> ClaimAsk:
    return ClaimAsk(key, ttl, frozenset(blocked_by))


def slot(key: str, *, lease: int = MINUTE, limit: int = 1, hold: int = 0, mark: int = 0) -> BeginAsk:
    return BeginAsk(key, True, limit, lease, hold, mark)


def once(key: str) -> BeginAsk:
    return replace(slot(key), remembers=True)


def pass_by(key: str, hold: int = 0) -> BeginAsk:
    return BeginAsk(key, False, hold=hold)


def begun(store: Store, attempt: Attempt, *asks: BeginAsk) -> tuple[int, ...]:
    reply = store.begin(asks, attempt)
    assert isinstance(reply, Begun), reply
    return reply.fences


def queued_ids(record: Record) -> list[str]:
    return [part.task_id for part in record.queued]


def running_tokens(record: Record) -> list[str]:
    return [part.token for part in record.running]


def near(expires_in: int | None, whole: int = MINUTE) -> bool:
    """Whether it is what was asked for, less the time a slow machine may take."""
    return expires_in is not None and whole - 10_000 < expires_in <= whole


def holder_ids(reply: Refused | None) -> list[str]:
    assert isinstance(reply, Refused), reply
    return [holder.task_id for holder in reply.holders]


def free(store: Store, keys: Iterable[str], states: Collection[str] = STATES) -> int:
    """Frees what is held under the keys in these states, as an operator does. How many parts it was."""
    held = {key: [part for part in holdings(store.read(key)) if part.state in states] for key in keys}
    return sum(store.evict([evict_ask(key, parts) for key, parts in held.items()]))


def leave_mark(store: Store, key: str, mark: int = MINUTE) -> None:
    begun(store, Attempt("t1", "tok1", "n"), slot(key))
    store.begin([slot(key, mark=mark)], Attempt("t1", "copy", "n"))
    store.finish([FinishAsk(key, "tok1", "free")], Attempt("t1", "tok1"), well=True)
    assert store.read(key).ended
