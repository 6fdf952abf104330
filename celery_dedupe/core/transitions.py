"""How records change: one pure function a verb, for a list of locks at once, all or nothing.

``book`` maps keys to records as they stand; each function returns its reply and the records to write.
``now`` is the store's clock in microseconds. A record that comes back empty is to be deleted.
``store/lua/*.lua`` are the same functions inside Redis; one conformance suite drives both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from celery_dedupe.core.record import FOREVER, Done, Ended, Holder, Queued, Record, Running

EMPTY = Record()
Book = Mapping[str, Record]
Changes = dict[str, Record]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who claims.

    Attributes:
        task_id: of the call that is about to be published.
        inside: id of the task whose body makes the call, if any: a run does not block its own successor.
        retries: the retry count in the message.
        ended: tokens of runs that are known to have ended, though their record still says "running".
    """

    task_id: str
    inside: str = ""
    retries: int = 0
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who starts: one run of one message of one task. The fields are those of ``Running``."""

    task_id: str
    token: str
    nonce: str = ""
    retries: int = 0
    node: str = ""
    started: int = 0
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """One lock that a publish claims: for ``ttl`` ms, unless it is in one of the ``blocked_by`` states."""

    key: str
    ttl: int
    blocked_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class BeginAsk:
    """One lock that a start needs.

    Attributes:
        slot: take one of ``limit`` running slots for ``lease`` ms; without it only the queued claim ends.
        hold: ms for which the queued claim is kept if the start is refused; 0 gives it up.
        mark: ms for which a good end is remembered for this copy, if the first copy still runs.
        remembers: a done mark stands in the way.
    """

    key: str
    slot: bool
    limit: int = 1
    lease: int = 0
    hold: int = 0
    mark: int = 0
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class FinishAsk:
    """One lock that an ending run gives up.

    Attributes:
        token: of the slot; empty where the lock has none.
        outcome: ``"free"``; ``"done"`` (remembered for ``ttl`` ms, 0 for ever); ``"queued"`` (it will come
            back: claimed for ``ttl`` ms); ``"withdrawn"`` (a claim that outlives the run is given back too).
    """

    key: str
    token: str
    outcome: str
    ttl: int = 0


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """One running slot to prolong by ``lease`` ms from now."""

    key: str
    token: str
    lease: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock at ``index`` of the list is held by ``holders``; nothing was granted."""

    index: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """Granted. ``fences`` has one number a lock, 0 where it has no slot."""

    fences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Redelivered:
    """A copy of this very task still runs; its lease ends in ``expires_in`` ms unless renewed."""

    index: int
    expires_in: int


@dataclass(frozen=True, slots=True)
class Over:
    """A copy of this very message ended well already, or a later attempt of it is under way."""


BeginReply = Begun | Refused | Redelivered | Over


def claim(book: Book, asks: Sequence[ClaimAsk], caller: Caller, now: int) -> tuple[Refused | None, Changes]:
    """Claim every lock for a call about to be published, or none."""
    ms = now // 1000
    changes: Changes = {}
    for index, ask in enumerate(asks):
        record = _current(book, changes, ask.key, ms).without_tokens(caller.ended)
        holders = record.holders(ask.blocked_by, ms, but=(caller.task_id, caller.inside))
        if holders:
            return Refused(index, holders), {}
        changes[ask.key] = record.with_queued(Queued(caller.task_id, ms + ask.ttl, caller.retries))
    return None, changes


def withdraw(book: Book, keys: Collection[str], task_id: str, running: bool, now: int) -> Changes:
    """Give back what ``task_id`` has queued and, if ``running``, its slots as well."""
    changes: Changes = {}
    for key in keys:
        record = _current(book, changes, key, now // 1000).without_queued(task_id)
        changes[key] = record.without_running(task_id) if running else record
    return changes


def begin(book: Book, asks: Sequence[BeginAsk], attempt: Attempt, now: int) -> tuple[BeginReply, Changes]:
    """Turn queued claims into running slots, all of them or none; or say what is in the way."""
    ms = now // 1000
    changes = {ask.key: _current(book, {}, ask.key, ms).without_tokens(attempt.ended) for ask in asks}
    for index, ask in enumerate(asks):
        reply = _obstacle(changes[ask.key], index, ask, attempt, ms) if ask.slot else None
        if reply is not None:
            return reply, _give_way(reply, changes, asks, attempt, ms)
    fences = []
    for ask in asks:
        record = changes[ask.key].without_queued(attempt.task_id)
        fence = 0
        if ask.slot:
            mine = record.run(attempt.token)
            fence = mine.fence if mine else max([now, *(part.fence + 1 for part in record.running)])
            record = record.with_running(_run(attempt, fence, ms + ask.lease))
        fences.append(fence)
        changes[ask.key] = record
    return Begun(tuple(fences)), changes


def renew(book: Book, asks: Sequence[LeaseAsk], now: int) -> tuple[list[bool], Changes]:
    """Prolong leases; one answer each, ``False`` where the slot is no longer this run's."""
    ms = now // 1000
    changes: Changes = {}
    kept = []
    for ask in asks:
        record = _current(book, changes, ask.key, ms)
        run = record.run(ask.token)
        kept.append(run is not None)
        if run is not None:
            changes[ask.key] = record.with_running(replace(run, expires_at=ms + ask.lease))
    return kept, changes


def finish(
    book: Book, asks: Sequence[FinishAsk], attempt: Attempt, well: bool, now: int
) -> tuple[list[bool], Changes]:
    """Free an ending run's locks; one answer each, ``False`` where the slot was not this run's any more.

    ``attempt.retries`` is the count of the attempt to come where the outcome is ``"queued"``. ``well``
    leaves the mark that a waiting second copy looks for.
    """
    ms = now // 1000
    changes: Changes = {}
    found = []
    for ask in asks:
        record = _current(book, changes, ask.key, ms)
        run = record.run(ask.token)
        found.append(run is not None or not ask.token)
        changes[ask.key] = _ended(record.without_tokens((ask.token,)), run, ask, attempt, well, ms)
    return found, changes


def evict(record: Record, running: bool, now: int) -> tuple[int, Record]:
    """What an operator frees: queued and done parts, and slots too if ``running``. Returns how many parts."""
    record = record.live(now // 1000)
    left = Record() if running else Record(running=record.running, ended=record.ended)
    freed = len(record.queued) + (record.done is not None) + (len(record.running) if running else 0)
    return freed, left


def _current(book: Book, changes: Changes, key: str, ms: int) -> Record:
    # Two locks of one task may share a key: the second sees what the first has changed.
    return changes[key] if key in changes else book.get(key, EMPTY).live(ms)


def _obstacle(record: Record, index: int, ask: BeginAsk, attempt: Attempt, ms: int) -> BeginReply | None:
    if record.run(attempt.token) is not None:
        return None  # The reply to an earlier, granted begin was lost on the wire.
    mine = record.runs_of(attempt.task_id)
    later = [part for part in (*mine, *record.queued) if part.task_id == attempt.task_id]
    if any(part.retries > attempt.retries for part in later):
        return Over()
    if any((part.task_id, part.nonce) == (attempt.task_id, attempt.nonce) for part in record.ended):
        return Over()
    if mine:
        return Redelivered(index, max(part.expires_at for part in mine) - ms)
    if ask.remembers and record.done:
        return Over() if record.done.task_id == attempt.task_id else Refused(index, record.holders(("done",), ms))
    if len(record.running) >= ask.limit:
        return Refused(index, record.holders(("running",), ms))
    return None


def _give_way(reply: BeginReply, book: Changes, asks: Sequence[BeginAsk], attempt: Attempt, ms: int) -> Changes:
    if isinstance(reply, Over):
        return {}
    for ask in asks:
        record = book[ask.key]
        if isinstance(reply, Redelivered):
            for run in record.runs_of(attempt.task_id):
                if run.nonce == attempt.nonce:
                    record = record.with_running(replace(run, marked_until=ms + ask.mark))
        elif ask.hold:
            record = record.with_queued(Queued(attempt.task_id, ms + ask.hold, attempt.retries))
        else:
            record = record.without_queued(attempt.task_id)
        book[ask.key] = record
    return book


def _run(attempt: Attempt, fence: int, expires_at: int) -> Running:
    return Running(
        attempt.token,
        attempt.task_id,
        attempt.nonce,
        fence,
        attempt.retries,
        attempt.node,
        attempt.started,
        expires_at,
    )


def _ended(
    record: Record, run: Running | None, ask: FinishAsk, attempt: Attempt, well: bool, ms: int
) -> Record:
    if ask.outcome == "queued":
        record = record.with_queued(Queued(attempt.task_id, ms + ask.ttl, attempt.retries))
    elif ask.outcome == "withdrawn":
        record = record.without_queued(attempt.task_id)
    elif ask.outcome == "done" and (run is not None or not record.running):
        record = replace(record, done=Done(attempt.task_id, ms + ask.ttl if ask.ttl else FOREVER))
    if run is not None and well and run.marked_until > ms:
        mark = Ended(run.task_id, run.nonce, run.marked_until)
        record = replace(record, ended=(*record.ended, mark))
    return record
