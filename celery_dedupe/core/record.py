"""A lock's record: what is queued, running and done under one key.

Pure values. Times are whole milliseconds of the store's own clock; ``0`` as an expiry means never.
``transitions.py`` says how a record changes; ``store/lua/record.lua`` is the same in Redis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from celery_dedupe.core.parts import FOREVER, Delivered, Done, Ended, Holder, Pace, Queued, Running, Trace


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known under one key. An empty record is the same as none."""

    queued: tuple[Queued, ...] = ()
    running: tuple[Running, ...] = ()
    done: Done | None = None
    ended: tuple[Ended, ...] = ()
    traces: tuple[Trace, ...] = ()
    delivered: tuple[Delivered, ...] = ()
    pace: Pace | None = None

    def __bool__(self) -> bool:
        return self != _NOTHING

    @property
    def expires_at(self) -> int:
        """When the last part ends: the record's own time to live. ``FOREVER`` if one part never does."""
        ends = [part.expires_at for part in self.queued]
        ends += [part.expires_at for part in self.running]
        ends += [part.expires_at for part in self.ended]
        ends += [part.expires_at for part in self.traces]
        ends += [part.expires_at for part in self.delivered]
        ends += [part.expires_at for part in (self.done, self.pace) if part]
        return FOREVER if FOREVER in ends else max(ends, default=FOREVER)

    def live(self, now: int) -> Record:
        """The record without the parts whose time has passed."""
        done = self.done if self.done and _alive(self.done.expires_at, now) else None
        return Record(
            tuple(part for part in self.queued if _alive(part.expires_at, now)),
            tuple(part for part in self.running if _alive(part.expires_at, now)),
            done,
            tuple(part for part in self.ended if _alive(part.expires_at, now)),
            tuple(part for part in self.traces if _alive(part.expires_at, now)),
            tuple(part for part in self.delivered if _alive(part.expires_at, now)),
            self.pace if self.pace and _alive(self.pace.expires_at, now) else None,
        )

    def with_queued(self, part: Queued) -> Record:
        """The same with ``part`` as the only queued claim of its task id, there since its first one was."""
        for old in self.queued:
            if old.task_id == part.task_id:
                part = replace(part, since=old.since)
        kept = self.without_queued(part.task_id)
        return replace(kept, queued=(*kept.queued, part))

    def with_ended(self, part: Ended) -> Record:
        """The same with ``part`` as the only mark of its message."""
        mark = part.task_id, part.nonce
        kept = tuple(old for old in self.ended if (old.task_id, old.nonce) != mark)
        return replace(self, ended=(*kept, part))

    def with_result_of(self, tokens: Collection[str]) -> Record:
        """The same without the runs named by ``tokens``, whose results are final; each finds a mark of it."""
        over = [part for part in self.running if part.token in tokens]
        record = self.without_tokens(tokens)
        for part in over:
            record = record.with_ended(Ended("", part.token, part.expires_at))
        return record

    def without_result_of(self, token: str) -> Record:
        """The same without the mark that ``with_result_of`` has left for a run."""
        return replace(self, ended=tuple(part for part in self.ended if part != self.result_of(token)))

    def result_of(self, token: str) -> Ended | None:
        """The mark that ``with_result_of`` has left for a run."""
        return next((part for part in self.ended if not part.task_id and part.nonce == token), None)

    def with_trace(self, part: Trace) -> Record:
        """The same with ``part`` as the only trace of its task id."""
        kept = tuple(old for old in self.traces if old.task_id != part.task_id)
        return replace(self, traces=(*kept, part))

    def with_delivered(self, part: Delivered) -> Record:
        """The same with ``part`` as the only count of its task id."""
        kept = self.without_delivered(part.task_id)
        return replace(kept, delivered=(*kept.delivered, part))

    def without_delivered(self, task_id: str) -> Record:
        """The same without the count of a task id's deliveries."""
        return replace(self, delivered=tuple(part for part in self.delivered if part.task_id != task_id))

    def deliveries_of(self, task_id: str, nonce: str) -> int:
        """How often a message has started, as far as is known."""
        message = task_id, nonce
        return next((part.count for part in self.delivered if (part.task_id, part.nonce) == message), 0)

    def without_queued(self, task_id: str) -> Record:
        """The same without the queued claim of ``task_id``."""
        return replace(self, queued=tuple(part for part in self.queued if part.task_id != task_id))

    def with_running(self, part: Running) -> Record:
        """The same with ``part`` in a slot, in place of an earlier one with its token."""
        if self.run(part.token) is None:
            return replace(self, running=(*self.running, part))
        return replace(self, running=tuple(part if old.token == part.token else old for old in self.running))

    def without_tokens(self, tokens: Collection[str]) -> Record:
        """The same without the runs named by ``tokens``, and their traces."""
        return replace(
            self,
            running=tuple(part for part in self.running if part.token not in tokens),
            traces=tuple(part for part in self.traces if part.token not in tokens),
        )

    def without_running(self, task_id: str) -> Record:
        """The same without the runs of ``task_id``."""
        return replace(self, running=tuple(part for part in self.running if part.task_id != task_id))

    def run(self, token: str) -> Running | None:
        """The run that ``token`` names."""
        return next((part for part in self.running if part.token == token), None)

    def runs_of(self, task_id: str) -> tuple[Running, ...]:
        """The runs of one task id."""
        return tuple(part for part in self.running if part.task_id == task_id)

    def holders(self, states: Collection[str], now: int, but: Collection[str] = ()) -> tuple[Holder, ...]:
        """Whoever is in one of ``states`` but the task ids of ``but``: those of the first state that has any.

        What waits is named before what runs: its result is the fresher one. A task id in ``but`` is no
        obstacle while queued or running; what is done is done, whoever did it.
        """
        found: tuple[Holder, ...] = ()
        if "queued" in states:
            found = tuple(
                Holder("queued", part.task_id, _left(part.expires_at, now))
                for part in self.queued
                if part.task_id not in but
            )
        if "running" in states and not found:
            found = tuple(
                Holder("running", part.task_id, _left(part.expires_at, now), part.token, part.started)
                for part in self.running
                if part.task_id not in but
            )
        if "done" in states and not found and self.done:
            found = (Holder("done", self.done.task_id, _left(self.done.expires_at, now)),)
        if "done" in states and not found:
            found = tuple(
                Holder("lapsed", part.task_id, _left(part.expires_at, now), part.token, part.started)
                for part in self.traces
                if part.task_id not in but and self.run(part.token) is None
            )
        return found


_NOTHING = Record()


def _alive(expires_at: int, now: int) -> bool:
    return expires_at == FOREVER or expires_at > now


def _left(expires_at: int, now: int) -> int | None:
    return None if expires_at == FOREVER else expires_at - now
