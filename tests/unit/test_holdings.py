"""What a record looks like to people, part by part, and what frees a part."""

from __future__ import annotations

from celery_dedupe.core.asks import EvictAsk
from celery_dedupe.core.holdings import Holding, evict_ask, holdings
from celery_dedupe.core.parts import FOREVER, Done, Ended, Queued, Running, Trace
from celery_dedupe.core.record import Record

RUN = Running("tok", "r", "n", 7_000_900, 0, "w1@host", 5, 9000)
FULL = Record(
    (Queued("q1", 8000, 0, 6000), Queued("q2", 8500, 0, 6500)),
    (RUN,),
    Done("d", FOREVER, 6600),
    (Ended("e", "n", 2500),),
    (Trace("r", "tok", 5, 9500), Trace("gone", "dead", 4, 9500)),
)


def test_every_part_that_blocks_somebody_is_one():
    assert holdings(FULL) == (
        Holding("queued", "q1", 6000, 8000, "q1"),
        Holding("queued", "q2", 6500, 8500, "q2"),
        Holding("running", "r", 7000, 9000, "tok", "w1@host", 7_000_900),
        Holding("done", "d", 6600, None, "d"),
        Holding("lapsed", "gone", 4, 9500, "dead"),
    )
    assert holdings(Record()) == ()


def test_what_is_done_ends_when_it_says():
    (done,) = holdings(Record(done=Done("d", 7000, 6600)))
    assert done.expires_at == 7000


def test_each_part_is_freed_by_its_owner():
    q1, q2, run, done, lapsed = holdings(FULL)
    assert evict_ask("k", [q1, q2, run, done, lapsed]) == EvictAsk("k", ("q1", "q2"), ("tok", "dead"), "d")
    assert evict_ask("k", [q2]) == EvictAsk("k", ("q2",))
    assert evict_ask("k", []) == EvictAsk("k")
