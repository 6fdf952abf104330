"""How records change: one pure function a verb, for a list of locks at once, all or nothing.

``book`` maps keys to records as they stand; each function returns its reply and the records to write.
``now`` is the store's clock in microseconds. A record that comes back empty is to be deleted.
``store/lua/*.lua`` are the same functions inside Redis; one conformance suite drives both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_dedupe.core import pacing
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
from celery_dedupe.core.holdings import holdings
from celery_dedupe.core.parts import FOREVER, Delivered, Done, Ended, Queued, Running, Trace
from celery_dedupe.core.record import Record

EMPTY = Record()
Book = Mapping[str, Record]
Changes = dict[str, Record]


def claim(book: Book, asks: Sequence[ClaimAsk], caller: Caller, now: int) -> tuple[Refused | None, Changes]:
    """Claim every lock for a call about to be published, or none."""
    ms = now // 1000
    changes: Changes = {}
    for index, ask in enumerate(asks):
        record = _current(book, changes, ask.key, ms).with_result_of(caller.ended)
        holders = record.holders(ask.blocked_by, ms, but=(caller.task_id, caller.inside))
        if holders:
            return Refused(index, holders), {}
        record = record.without_queued(caller.inside)
        changes[ask.key] = record.with_queued(Queued(caller.task_id, ms + ask.ttl, caller.over, ms))
    return None, changes


def withdraw(
    book: Book, keys: Collection[str], task_id: str, running: bool, slots: Mapping[str, int], now: int
) -> Changes:
    """Give back what ``task_id`` has queued and, if ``running``, its slots as well. Its message is gone.

    ``slots`` are what it was promised under rates, by key.
    """
    changes: Changes = {}
    for key in keys:
        record = _current(book, changes, key, now // 1000)
        record = record.without_queued(task_id).without_delivered(task_id)
        if record.pace and key in slots:
            record = replace(record, pace=pacing.given_back(record.pace, slots[key], now))
        changes[key] = record.without_running(task_id) if running else record
    return changes


def begin(book: Book, asks: Sequence[BeginAsk], attempt: Attempt, now: int) -> tuple[BeginReply, Changes]:
    """Turn queued claims into running slots, all of them or none; or say what is in the way."""
    ms = now // 1000
    changes = {ask.key: _current(book, {}, ask.key, ms).with_result_of(attempt.ended) for ask in asks}
    if any(_stale(changes[ask.key], ask, attempt) for ask in asks):
        return Over(), {}
    for index, ask in enumerate(asks):
        reply = _obstacle(changes[ask.key], index, ask, attempt, ms) if ask.slot else None
        if reply is not None:
            return reply, _give_way(reply, changes, asks, attempt, ms)
    for index, ask in enumerate(asks):
        deliveries = _delivery(changes[ask.key], ask, attempt)
        if deliveries > ask.deliveries:
            return Exceeded(index, deliveries), {}
    paced = pacing.begin(changes, asks, now)
    if isinstance(paced, Later):
        return paced, _give_way(paced, changes, asks, attempt, ms)
    fences = []
    for ask in asks:
        record = changes[ask.key].without_queued(attempt.task_id)
        fence = 0
        if ask.slot:
            if count := _delivery(record, ask, attempt):
                part = Delivered(attempt.task_id, attempt.nonce, count, ms + ask.counted)
                record = record.with_delivered(part)
            run = _run(record, attempt, ms + ask.lease, now)
            record, fence = record.with_running(run), run.fence
            if ask.trace:
                trace = Trace(attempt.task_id, attempt.token, attempt.started, ms + ask.trace)
                record = record.with_trace(trace)
        fences.append(fence)
        changes[ask.key] = record
    return Begun(tuple(fences), paced), changes


def renew(book: Book, asks: Sequence[LeaseAsk], now: int) -> tuple[list[bool], Changes]:
    """Prolong leases; one answer each, ``False`` where the slot is gone, and not for the run's result."""
    ms = now // 1000
    changes: Changes = {}
    kept = []
    for ask in asks:
        record = _current(book, changes, ask.key, ms)
        run, result = record.run(ask.token), record.result_of(ask.token)
        kept.append(bool(run or result))
        if run is not None:
            changes[ask.key] = record.with_running(replace(run, expires_at=ms + ask.lease))
        elif result is not None:
            changes[ask.key] = record.with_ended(replace(result, expires_at=ms + ask.lease))
    return kept, changes


def finish(
    book: Book, asks: Sequence[FinishAsk], attempt: Attempt, well: bool, now: int
) -> tuple[list[bool], Changes]:
    """Free an ending run's locks; one answer each, ``False`` where the slot was not this run's any more.

    ``attempt.generation`` is that of the attempt to come where the outcome is ``"queued"``. ``well`` says
    that the message needs no second run, and leaves the mark that a waiting second copy looks for.
    """
    ms = now // 1000
    changes: Changes = {}
    before = [_current(book, {}, ask.key, ms) for ask in asks]
    for ask, old in zip(asks, before, strict=True):
        record = _counted_at_end(_current(book, changes, ask.key, ms), ask, attempt)
        record = record.without_tokens((ask.token,)).without_result_of(ask.token)
        changes[ask.key] = _ended(record, old.run(ask.token), ask, attempt, well, ms)
    return [
        not ask.token or bool(old.run(ask.token) or old.result_of(ask.token))
        for ask, old in zip(asks, before, strict=True)
    ], changes


def evict(book: Book, asks: Sequence[EvictAsk], now: int) -> tuple[list[int], Changes]:
    """Free what an operator names, where it is still its owner's; how many parts under each key."""
    changes: Changes = {}
    freed = []
    for ask in asks:
        record = _current(book, changes, ask.key, now // 1000)
        left = record.without_tokens(ask.tokens)
        for task_id in ask.queued:
            left = left.without_queued(task_id)
        if left.done and left.done.task_id == ask.done:
            left = replace(left, done=None)
        freed.append(len(holdings(record)) - len(holdings(left)))
        changes[ask.key] = left
    return freed, changes


def _current(book: Book, changes: Changes, key: str, ms: int) -> Record:
    # Two locks of one task may share a key: the second sees what the first has changed.
    return changes[key] if key in changes else book.get(key, EMPTY).live(ms)


def _stale(record: Record, ask: BeginAsk, attempt: Attempt) -> bool:
    if record.run(attempt.token) is not None:
        return False  # The reply to an earlier, granted begin was lost on the wire.
    counts = [part.generation for part in record.queued if part.task_id == attempt.task_id]
    counts += [part.generation for part in record.runs_of(attempt.task_id)]
    message = attempt.task_id, attempt.nonce
    return (
        max(counts, default=0) > attempt.generation
        or any((part.task_id, part.nonce) == message for part in record.ended)
        or (ask.remembers and record.done is not None and record.done.task_id == attempt.task_id)
    )


def _obstacle(record: Record, index: int, ask: BeginAsk, attempt: Attempt, ms: int) -> BeginReply | None:
    if record.run(attempt.token) is not None:
        return None
    if mine := record.runs_of(attempt.task_id):
        return Redelivered(index, max(part.expires_at for part in mine) - ms)
    if ask.remembers and record.done:
        return Refused(index, record.holders(("done",), ms))
    if len(record.running) >= ask.limit:
        return Refused(index, record.holders(("running",), ms))
    if ask.remembers and (lapsed := record.holders(("done",), ms, but=(attempt.task_id,))):
        return Refused(index, lapsed)
    return None


def _give_way(
    reply: BeginReply, book: Changes, asks: Sequence[BeginAsk], attempt: Attempt, ms: int
) -> Changes:
    if isinstance(reply, Redelivered):
        for ask in asks:
            for run in book[ask.key].runs_of(attempt.task_id):
                if run.nonce == attempt.nonce:
                    book[ask.key] = book[ask.key].with_running(replace(run, marked_until=ms + ask.mark))
        return book
    # Two locks may share a key, and one that holds outweighs one that does not.
    held = {ask.key for ask in asks if ask.hold}
    until = ms + (reply.wait if isinstance(reply, Later) else 0)
    for ask in asks:
        if ask.hold:
            part = Queued(attempt.task_id, until + ask.hold, attempt.generation, ms)
            book[ask.key] = book[ask.key].with_queued(part)
        elif ask.key not in held:
            book[ask.key] = book[ask.key].without_queued(attempt.task_id)
    return book


def _delivery(record: Record, ask: BeginAsk, attempt: Attempt) -> int:
    """Which start of its message this is; 0 where nobody counts, or where it is counted already."""
    if not ask.deliveries or record.run(attempt.token) is not None:
        return 0
    return record.deliveries_of(attempt.task_id, attempt.nonce) + 1


def _counted_at_end(record: Record, ask: FinishAsk, attempt: Attempt) -> Record:
    held = record.run(ask.token) is not None
    if ask.deliveries == "forget" and (held or not ask.token):
        return record.without_delivered(attempt.task_id)
    if ask.deliveries == "undo" and held:
        return replace(
            record,
            delivered=tuple(
                replace(part, count=part.count - 1) if part.task_id == attempt.task_id else part
                for part in record.delivered
                if part.task_id != attempt.task_id or part.count > 1
            ),
        )
    return record


def _run(record: Record, attempt: Attempt, expires_at: int, now: int) -> Running:
    mine = record.run(attempt.token)
    if mine is not None:
        return replace(mine, expires_at=expires_at)
    return Running(
        attempt.token,
        attempt.task_id,
        attempt.nonce,
        max([now, *(part.fence + 1 for part in record.running)]),
        attempt.generation,
        attempt.node,
        attempt.started,
        expires_at,
    )


def _ended(
    record: Record, run: Running | None, ask: FinishAsk, attempt: Attempt, well: bool, ms: int
) -> Record:
    held = run is not None or not ask.token
    if ask.outcome == "queued" and held:
        record = record.with_queued(Queued(attempt.task_id, ms + ask.ttl, attempt.generation, ms))
    elif ask.outcome == "withdrawn":
        record = record.without_queued(attempt.task_id)
    elif ask.outcome == "done" and (run is not None or not (record.running or record.done)):
        record = replace(record, done=Done(attempt.task_id, ms + ask.ttl if ask.ttl else FOREVER, ms))
    if run is not None and well and run.marked_until > ms:
        record = record.with_ended(Ended(run.task_id, run.nonce, run.marked_until))
    return record
