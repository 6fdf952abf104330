from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Caller, ClaimAsk
from celery_dedupe.core.parts import FOREVER, Done, Ended, Holder, Queued, Running
from celery_dedupe.core.record import Record
from celery_dedupe.store.memory import MemoryStore

NOW = 1000
QUEUED = Queued("q", 1500)
RUN = Running("tok", "r", "n", 7, 0, "node", 5, 2000)
DONE = Done("d", 3000)
ENDED = Ended("e", "n", 2500)
FULL = Record((QUEUED,), (RUN,), DONE, (ENDED,))


class TestRecord:
    def test_it_is_false_when_it_is_empty(self) -> None:
        assert not Record()
        for part in ({"queued": (QUEUED,)}, {"running": (RUN,)}, {"done": DONE}, {"ended": (ENDED,)}):
            assert Record(**part)

    @pytest.mark.parametrize(
        ("record", "end"),
        [
            (FULL, 3000),
            (Record((QUEUED,), (RUN,)), 2000),
            (Record((QUEUED,), ended=(ENDED,)), 2500),
            (Record((QUEUED,), (RUN,), Done("d", FOREVER)), FOREVER),
        ],
    )
    def test_it_ends_with_its_last_part(self, record: Record, end: int) -> None:
        assert record.expires_at == end

    def test_a_part_is_gone_at_its_end_and_not_before(self) -> None:
        assert FULL.live(1499) == FULL
        assert FULL.live(1500) == replace(FULL, queued=())
        assert FULL.live(2000) == Record(done=DONE, ended=(ENDED,))
        assert FULL.live(3000) == Record()
        assert Record(done=Done("d", FOREVER)).live(10**15)

    def test_holders_are_of_the_first_state_that_has_any(self) -> None:
        every = ("done", "running", "queued")
        queued, run = Holder("queued", "q", 500), Holder("running", "r", 1000, "tok", 5)
        assert FULL.holders(every, NOW) == (queued,)
        assert FULL.holders(every, NOW, but=("q",)) == (run,)
        assert FULL.holders(every, NOW, but=("q", "r", "d")) == (Holder("done", "d", 2000),)
        assert FULL.holders(("running",), NOW) == (run,)
        assert FULL.holders((), NOW) == ()
        assert Record(done=Done("d", FOREVER)).holders(every, NOW) == (Holder("done", "d", None),)

    def test_a_slot_is_replaced_in_its_place(self) -> None:
        other = replace(RUN, token="other")
        renewed = replace(RUN, expires_at=9000)
        assert Record(running=(RUN, other)).with_running(renewed).running == (renewed, other)


class Clock:
    def __init__(self, micros: int) -> None:
        self.micros = micros

    def __call__(self) -> int:
        return self.micros


def begin(store: MemoryStore, name: str, lease: int = 1000) -> int:
    reply = store.begin([BeginAsk("k", True, 9, lease)], Attempt(name, name))
    assert isinstance(reply, Begun)
    return reply.fences[0]


class TestMemoryStore:
    def test_fences_grow_while_a_run_is_there_even_if_the_clock_stands_still_or_goes_back(self) -> None:
        clock = Clock(10**15)
        store = MemoryStore(clock)
        fences = [begin(store, "a"), begin(store, "b")]
        clock.micros -= 50
        fences.append(begin(store, "c"))
        assert fences == [10**15, 10**15 + 1, 10**15 + 2]

    def test_records_that_nobody_asks_for_again_are_swept_out(self) -> None:
        clock = Clock(10**15)
        store = MemoryStore(clock)
        begin(store, "stays", lease=10**9)
        for number in range(10_000):
            store.claim([ClaimAsk(f"k{number}", 5, frozenset())], Caller("t"))
            clock.micros += 1000
        assert len(store._records) < 2000
        assert store.read("k").running
        assert store.read("k9999").queued

    def test_all_that_live_are_kept_however_many(self) -> None:
        store = MemoryStore()
        for number in range(5000):
            store.claim([ClaimAsk(f"k{number}", 60_000, frozenset())], Caller("t"))
        assert len(dict(store.scan("*"))) == 5000
