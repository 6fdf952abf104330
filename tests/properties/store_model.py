"""A claim store in the plainest form that can be right: one list of parts, walked from end to end.

It shares the shape of asks and replies with the stores, and nothing of how they come about.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    RateAsk,
    Redelivered,
    Refused,
)
from celery_dedupe.core.parts import Delivered, Done, Ended, Holder, Pace, Queued, Running
from celery_dedupe.core.record import Record


@dataclass
class Part:
    kind: str
    key: str
    id: str
    until: int  # ms; 0 is for ever
    generation: int = 0
    token: str = ""
    nonce: str = ""
    fence: int = 0
    node: str = ""
    started: int = 0
    marked: int = 0
    since: int = 0
    count: int = 0


@dataclass
class Pacer:
    """Starts under a rate. Whoever waits stands in line behind ``tail``, or where somebody has left a gap."""

    starts: list[int] = field(default_factory=list)
    window: int = 0  # the longest
    tail: int = 0
    gap: int = 0
    gaps: list[int] = field(default_factory=list)
    until: int = 0  # ms

    def last(self) -> int:
        return max(self.starts, default=0)

    def look(self, ask: RateAsk, tick: int) -> tuple[int, bool]:
        """When a run may start, and whether it may take that start now; the line moves on."""
        if self.last() > tick + 1_250_000:  # The clock was set back.
            self.starts, self.window, self.tail, self.gap, self.gaps, self.until = [], 0, 0, 0, [], 0
        raised = ask.reserves and -(-ask.window // ask.starts) < self.gap
        if self.tail > tick and (tick - self.last() > ask.silence or raised):
            self.tail, self.gaps = 0, []
        self.gaps = [gap for gap in self.gaps if gap > tick]
        full = self.starts[-ask.starts] + ask.window if len(self.starts) >= ask.starts else 0
        room = max(tick, self.last(), full)
        soon = tick + ask.patience
        if ask.slot > soon and ask.slot <= self.tail:
            return ask.slot, False
        if ask.slot and ask.slot <= soon and room <= soon:
            return max(room, ask.slot), True
        if self.tail <= tick and room <= soon:
            return room, True
        place, is_gap = self.next_place(ask, room, tick)
        start_now = max(place, room) <= soon
        if start_now or ask.reserves:
            if is_gap:
                self.gaps.remove(place)
            else:
                self.tail, self.gap = place, -(-ask.window // ask.starts)
                self.until = max(self.until, (place + ask.window) // 1000 + 1)
        return (max(place, room), True) if start_now else (place, False)

    def next_place(self, ask: RateAsk, room: int, tick: int) -> tuple[int, bool]:
        if self.gaps:
            return min(self.gaps), True
        behind = self.tail + -(-ask.window // ask.starts)
        return (behind if self.tail > tick else max(room, behind)), False

    def start(self, ask: RateAsk, at: int) -> None:
        self.window = max(self.window, ask.window)
        self.starts = [*(start for start in self.starts if at - start < self.window), at][-1000:]
        self.until = max(self.until, (at + ask.window) // 1000 + 1)

    def leave(self, place: int, tick: int) -> None:
        if tick < place <= self.tail and place not in self.gaps:
            self.gaps = sorted([*self.gaps, place])
            while self.gaps and self.gaps[-1] >= self.tail:
                self.gaps.pop()
                self.tail -= self.gap


class Model:
    """Attributes: tick: its clock, in microseconds."""

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.parts: list[Part] = []
        self.pacers: dict[str, Pacer] = {}

    @property
    def now(self) -> int:
        return self.tick // 1000

    def forget_the_past(self) -> None:
        self.parts = [part for part in self.parts if part.until == 0 or part.until > self.now]
        self.pacers = {key: pacer for key, pacer in self.pacers.items() if pacer.until > self.now}

    def at(self, key: str, kind: str) -> list[Part]:
        return [part for part in self.parts if part.key == key and part.kind == kind]

    def remove(self, key: str, kind: str, **fields: str) -> None:
        for part in self.at(key, kind):
            if all(getattr(part, name) == value for name, value in fields.items()):
                self.parts.remove(part)

    def end(self, key: str, tokens: Sequence[str]) -> None:
        """Their results are known, which a mark tells them until their lease would have ended."""
        for part in self.at(key, "running"):
            if part.token in tokens:
                self.remove(key, "ended", id="", nonce=part.token)
                self.parts.append(Part("ended", key, "", part.until, nonce=part.token))
                self.parts.remove(part)

    def queue(self, key: str, task_id: str, ttl: int, generation: int) -> None:
        since = min([self.now, *(part.since for part in self.at(key, "queued") if part.id == task_id)])
        self.remove(key, "queued", id=task_id)
        self.parts.append(Part("queued", key, task_id, self.now + ttl, generation, since=since))

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        self.forget_the_past()
        before = [replace(part) for part in self.parts]
        for place, ask in enumerate(asks):
            self.end(ask.key, caller.ended)
            for state in ("queued", "running", "done"):
                others = [
                    part
                    for part in self.at(ask.key, state)
                    if state == "done" or part.id not in (caller.task_id, caller.inside)
                ]
                if state in ask.blocked_by and others:
                    holders = self.holders(others)
                    self.parts = before
                    return Refused(place, holders)
            self.remove(ask.key, "queued", id=caller.inside)
            # A retry is published by the attempt before it, which is not over while it does so.
            self.queue(ask.key, caller.task_id, ask.ttl, max(caller.generation, 1) - 1)
        return None

    def withdraw(self, keys: Collection[str], task_id: str, running: bool, slots: Mapping[str, int]) -> None:
        self.forget_the_past()
        for key in keys:
            if key in self.pacers and key in slots:
                self.pacers[key].leave(slots[key], self.tick)
            self.remove(key, "queued", id=task_id)
            self.remove(key, "count", id=task_id)
            if running:
                self.remove(key, "running", id=task_id)

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        self.forget_the_past()
        before = [replace(part) for part in self.parts]
        for ask in asks:
            self.end(ask.key, attempt.ended)
        for ask in asks:
            if self.is_late(ask, attempt):
                self.parts = before
                return Over()
        for place, ask in enumerate(asks):
            runs = self.at(ask.key, "running")
            if not ask.slot or any(part.token == attempt.token for part in runs):
                continue
            mine = [part for part in runs if part.id == attempt.task_id]
            done = self.at(ask.key, "done") if ask.remembers else []
            if mine:
                self.leave_word(asks, attempt)
                return Redelivered(place, max(part.until for part in mine) - self.now)
            if done or len(runs) >= ask.limit:
                refused = Refused(place, self.holders(done or runs))
                self.make_way(asks, attempt)
                return refused
        for place, ask in enumerate(asks):
            known = any(part.token == attempt.token for part in self.at(ask.key, "running"))
            count = self.count(ask.key, attempt) + 1
            if ask.deliveries and not known and count > ask.deliveries:
                self.parts = before
                return Exceeded(place, count)
        delay = self.keep_rates(asks, attempt)
        if isinstance(delay, Later):
            return delay
        return Begun(tuple(self.take(ask, attempt) for ask in asks), delay)

    def keep_rates(self, asks: Sequence[BeginAsk], attempt: Attempt) -> int | Later:
        before = {key: replace(pacer) for key, pacer in self.pacers.items()}
        found = {}
        for place, ask in enumerate(asks):
            if ask.rate:
                pacer = self.pacers.setdefault(ask.key, Pacer())
                found[place] = (ask.key, ask.rate, *pacer.look(ask.rate, self.tick))
        waits = [when for _, rate, when, free in found.values() if not free and rate.reserves]
        refused = [when for _, _, when, free in found.values() if not free]
        at = max(waits or refused or [when for _, _, when, _ in found.values()] or [self.tick])
        wait = (at - self.tick + 999) // 1000
        if all(free for *_, free in found.values()):
            for key, rate, *_ in found.values():
                self.pacers[key].start(rate, at)
            return wait
        slots = [0] * len(asks)
        index = 0
        for place, (key, rate, when, free) in found.items():
            if free:
                # It does not start, so it has taken nothing.
                self.pacers.pop(key)
                self.pacers.update({key: before[key]} if key in before else {})
                slots[place] = rate.slot
            else:
                slots[place] = when if rate.reserves else 0
                index = place if when == at and bool(waits) == rate.reserves else index
        self.pacers = {key: pacer for key, pacer in self.pacers.items() if pacer.until}
        self.make_way(asks, attempt, wait)
        return Later(index, wait, tuple(slots))

    def count(self, key: str, attempt: Attempt) -> int:
        message = attempt.task_id, attempt.nonce
        return sum(part.count for part in self.at(key, "count") if (part.id, part.nonce) == message)

    def is_late(self, ask: BeginAsk, attempt: Attempt) -> bool:
        runs = self.at(ask.key, "running")
        if any(part.token == attempt.token for part in runs):
            return False
        own = [part for part in self.parts if part.key == ask.key and part.id == attempt.task_id]
        return any(
            (part.kind in ("queued", "running") and part.generation > attempt.generation)
            or (part.kind == "ended" and part.nonce == attempt.nonce)
            or (part.kind == "done" and ask.remembers)
            for part in own
        )

    def leave_word(self, asks: Sequence[BeginAsk], attempt: Attempt) -> None:
        for ask in asks:
            for part in self.at(ask.key, "running"):
                if (part.id, part.nonce) == (attempt.task_id, attempt.nonce):
                    part.marked = self.now + ask.mark

    def make_way(self, asks: Sequence[BeginAsk], attempt: Attempt, wait: int = 0) -> None:
        for ask in asks:
            if not any(other.hold for other in asks if other.key == ask.key):
                self.remove(ask.key, "queued", id=attempt.task_id)
            elif ask.hold:
                self.queue(ask.key, attempt.task_id, ask.hold + wait, attempt.generation)

    def take(self, ask: BeginAsk, attempt: Attempt) -> int:
        self.remove(ask.key, "queued", id=attempt.task_id)
        if not ask.slot:
            return 0
        runs = self.at(ask.key, "running")
        for part in runs:
            if part.token == attempt.token:
                part.until = self.now + ask.lease
                return part.fence
        if ask.deliveries:
            count = self.count(ask.key, attempt) + 1
            self.remove(ask.key, "count", id=attempt.task_id)
            until = self.now + ask.counted
            self.parts.append(
                Part("count", ask.key, attempt.task_id, until, nonce=attempt.nonce, count=count)
            )
        fence = self.tick
        for part in runs:
            fence = max(fence, part.fence + 1)
        run = Part(
            "running", ask.key, attempt.task_id, self.now + ask.lease, attempt.generation, attempt.token
        )
        run.nonce, run.fence, run.node, run.started = attempt.nonce, fence, attempt.node, attempt.started
        self.parts.append(run)
        return fence

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        self.forget_the_past()
        kept = []
        for ask in asks:
            mine = [part for part in self.at(ask.key, "running") if part.token == ask.token]
            over = [part for part in self.at(ask.key, "ended") if (part.id, part.nonce) == ("", ask.token)]
            for part in mine or over:
                part.until = self.now + ask.lease
            kept.append(bool(mine or over))
        return kept

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, well: bool) -> list[bool]:
        self.forget_the_past()
        runs = {
            (part.key, part.token): replace(part) for part in self.parts if part.kind == "running"
        }  # as it was before any of the locks is freed
        over = {(part.key, part.nonce) for part in self.parts if (part.kind, part.id) == ("ended", "")}
        for ask in asks:
            run = runs.get((ask.key, ask.token))
            self.end_count(ask, attempt)
            self.remove(ask.key, "running", token=ask.token)
            self.remove(ask.key, "ended", id="", nonce=ask.token)
            if ask.outcome == "queued" and (run or not ask.token):
                self.queue(ask.key, attempt.task_id, ask.ttl, attempt.generation)
            if ask.outcome == "withdrawn":
                self.remove(ask.key, "queued", id=attempt.task_id)
            unknown = not self.at(ask.key, "running") and not self.at(ask.key, "done")
            if ask.outcome == "done" and (run or unknown):
                self.remove(ask.key, "done")
                until = self.now + ask.ttl if ask.ttl else 0
                self.parts.append(Part("done", ask.key, attempt.task_id, until, since=self.now))
            if run and well and run.marked > self.now:
                self.remove(ask.key, "ended", id=run.id, nonce=run.nonce)
                self.parts.append(Part("ended", ask.key, run.id, run.marked, nonce=run.nonce))
        return [not ask.token or (ask.key, ask.token) in {*runs, *over} for ask in asks]

    def end_count(self, ask: FinishAsk, attempt: Attempt) -> None:
        runs = any(part.token == ask.token for part in self.at(ask.key, "running"))
        for part in self.at(ask.key, "count"):
            if part.id != attempt.task_id or ask.deliveries == "keep":
                continue
            if ask.deliveries == "undo":
                part.count -= runs
            elif runs or not ask.token:
                part.count = 0
            if part.count == 0:
                self.parts.remove(part)

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        self.forget_the_past()
        freed = []
        for ask in asks:
            before = len(self.parts)
            for task_id in ask.queued:
                self.remove(ask.key, "queued", id=task_id)
            for token in ask.tokens:
                self.remove(ask.key, "running", token=token)
            self.remove(ask.key, "done", id=ask.done)
            freed.append(before - len(self.parts))
        return freed

    def holders(self, parts: Sequence[Part]) -> tuple[Holder, ...]:
        return tuple(
            Holder(
                part.kind, part.id, part.until - self.now if part.until else None, part.token, part.started
            )
            for part in parts
        )

    def read(self, key: str) -> Record:
        self.forget_the_past()
        done = [Done(part.id, part.until, part.since) for part in self.at(key, "done")]
        queued = self.at(key, "queued")
        return Record(
            tuple(Queued(part.id, part.until, part.generation, part.since) for part in queued),
            tuple(
                Running(
                    part.token, part.id, part.nonce, part.fence, part.generation, part.node, part.started,
                    part.until, part.marked,
                )
                for part in self.at(key, "running")
            ),
            done[0] if done else None,
            tuple(Ended(part.id, part.nonce, part.until) for part in self.at(key, "ended")),
            (),
            tuple(
                Delivered(part.id, part.nonce, part.count, part.until) for part in self.at(key, "count")
            ),
            self.pace(key),
        )  # fmt: skip

    def pace(self, key: str) -> Pace | None:
        if key not in self.pacers:
            return None
        pacer = self.pacers[key]
        return Pace(tuple(pacer.starts), pacer.window, pacer.tail, pacer.gap, tuple(pacer.gaps), pacer.until)
