"""What every store promises people."""

from __future__ import annotations

import time

import pytest

from celery_dedupe.core.asks import Attempt, Caller, EvictAsk, FinishAsk, LeaseAsk, Refused
from celery_dedupe.core.holdings import STATES, evict_ask, holdings
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store
from tests.contract.asks import (
    MINUTE,
    SHORT,
    begun,
    claim,
    free,
    leave_mark,
    queued_ids,
    running_tokens,
    slot,
)
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestOperators:
    def test_an_unknown_key_has_an_empty_record(self, store: Store, keys: Keys) -> None:
        assert store.read(keys()) == Record()

    def test_evict_frees_what_is_queued_and_done(self, store: Store, keys: Keys) -> None:
        _fill(store, keys())
        asks = [ask_for(store, keys(), "queued", "done"), EvictAsk(keys("none"), ("q1",), ("tok",), "q1")]
        assert store.evict(asks) == [3, 0]
        record = store.read(keys())
        assert (record.queued, record.done) == ((), None)
        assert running_tokens(record) == ["run"]
        assert [mark.task_id for mark in record.ended] == ["t1"]

    def test_and_running_slots_if_asked(self, store: Store, keys: Keys) -> None:
        _fill(store, keys())
        everything = ask_for(store, keys(), *STATES)
        assert store.evict([everything]) == [4]
        record = store.read(keys())
        assert record == Record(ended=record.ended), "a copy of a message that waits is still told"
        assert store.evict([everything]) == [0]
        assert store.evict([]) == []

    def test_what_has_changed_hands_since_it_was_seen_stays(self, store: Store, keys: Keys) -> None:
        for key, who in ((keys("q"), "t1"), (keys("r"), "t1")):
            store.claim([claim(key)], Caller(who))
        begun(store, Attempt("t1", "tok1"), slot(keys("r")))
        store.finish([FinishAsk(keys("d"), "", "done", MINUTE)], Attempt("t1", ""), well=True)
        seen = [ask_for(store, keys(name), *STATES) for name in "qrd"]
        for name in "qrd":
            assert free(store, [keys(name)]) == 1
        store.claim([claim(keys("q"))], Caller("t2"))
        begun(store, Attempt("t1", "tok2"), slot(keys("r")))
        store.finish([FinishAsk(keys("d"), "", "done", MINUTE)], Attempt("t2", ""), well=True)
        before = [store.read(keys(name)) for name in "qrd"]
        assert store.evict(seen) == [0, 0, 0]
        assert [store.read(keys(name)) for name in "qrd"] == before

    def test_a_claim_that_has_started_is_not_freed_as_queued(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        seen = ask_for(store, keys(), *STATES)
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        assert store.evict([seen]) == [0]
        assert running_tokens(store.read(keys())) == ["tok1"]

    def test_a_run_that_is_freed_has_lost_its_lease(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        assert store.renew([LeaseAsk(keys(), "tok1", MINUTE)]) == [True]
        assert free(store, [keys()], ("running",)) == 1
        assert store.renew([LeaseAsk(keys(), "tok1", MINUTE)]) == [False]

    def test_parts_whose_time_has_passed_are_not_counted(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys(), ttl=SHORT)], Caller("t1"))
        begun(store, Attempt("r", "tok"), slot(keys()))
        wait_until(lambda: not store.read(keys()).queued, 5)
        assert store.evict([EvictAsk(keys(), ("t1",))]) == [0]

    def test_scan_finds_what_matches_in_any_number_of_steps(self, store: Store, keys: Keys) -> None:
        for number in range(450):
            store.claim([claim(keys(f"scope{number % 2}:{number:03}"))], Caller(f"t{number}"))
        found = dict(store.scan(f"{keys.prefix}:scope1:*"))
        assert sorted(found) == [keys(f"scope1:{number:03}") for number in range(1, 450, 2)]
        assert all(queued_ids(record) == [f"t{int(key[-3:])}"] for key, record in found.items())
        assert free(store, found) == 225
        assert len(dict(store.scan(f"{keys.prefix}:*"))) == 225

    @pytest.mark.parametrize(
        ("pattern", "names"),
        [("b?d", {"bad", "bed"}), ("b[ae]d", {"bad", "bed"}), ("b[a-c]*", {"bad", "band"})],
    )
    def test_its_pattern_is_a_glob(self, store: Store, keys: Keys, pattern: str, names: set[str]) -> None:
        for name in ("bad", "bed", "band", "bead"):
            store.claim([claim(keys(name))], Caller("t1"))
        assert dict(store.scan(keys(pattern))).keys() == {keys(name) for name in names}

    def test_scan_leaves_out_what_has_expired(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys("a"), ttl=SHORT), claim(keys("b"))], Caller("t1"))
        wait_until(lambda: dict(store.scan(f"{keys.prefix}:*")).keys() == {keys("b")}, 5)

    def test_the_clock_counts_milliseconds_since_1970(self, store: Store) -> None:
        first = store.clock()
        assert abs(first - time.time() * 1000) < 5000
        wait_until(lambda: store.clock() > first, 5)
        assert store.clock() < first + 60_000


class TestAges:
    """Since when a claim is there, by the store's clock: for people, and nothing is decided by it."""

    def test_a_claim_is_as_old_as_its_publish(self, store: Store, keys: Keys) -> None:
        before = store.clock()
        store.claim([claim(keys())], Caller("t1"))
        assert before <= since(store, keys()) <= store.clock()

    def test_a_start_that_waits_leaves_it_its_age(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("first", "tok1"), slot(keys()))
        store.claim([claim(keys(), blocked_by=())], Caller("t2"))
        first = since(store, keys())
        wait_until(lambda: store.clock() > first, 5)
        for asks in ([slot(keys(), hold=MINUTE)], [slot(keys()), slot(keys(), hold=MINUTE)]):
            assert isinstance(store.begin(asks, Attempt("t2", "tok2")), Refused)
            assert queued_ids(store.read(keys())) == ["t2"]
            assert since(store, keys()) == first

    def test_a_retry_is_as_old_as_the_end_of_its_attempt(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        first = since(store, keys())
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        wait_until(lambda: store.clock() > first, 5)
        store.finish([FinishAsk(keys(), "tok1", "queued", MINUTE)], Attempt("t1", "tok1", "", 1), well=True)
        assert since(store, keys()) > first

    def test_a_run_is_as_old_as_its_fence_and_work_done_as_its_end(self, store: Store, keys: Keys) -> None:
        before = store.clock()
        (fence,) = begun(store, Attempt("t1", "tok1"), slot(keys()))
        assert before <= since(store, keys()) == fence // 1000
        wait_until(lambda: store.clock() > fence // 1000, 5)
        store.finish([FinishAsk(keys(), "tok1", "done", MINUTE)], Attempt("t1", "tok1"), well=True)
        assert fence // 1000 < since(store, keys()) <= store.clock()


def since(store: Store, key: str) -> int:
    return holdings(store.read(key))[0].since  # what is queued comes first


def ask_for(store: Store, key: str, *states: str) -> EvictAsk:
    return evict_ask(key, [part for part in holdings(store.read(key)) if part.state in states])


def _fill(store: Store, key: str) -> None:
    """Two queued, one running, one done, one mark."""
    leave_mark(store, key)
    store.finish([FinishAsk(key, "", "done", MINUTE)], Attempt("d", ""), well=True)
    for name in ("q1", "q2"):
        store.claim([claim(key, blocked_by=())], Caller(name))
    begun(store, Attempt("r", "run"), slot(key))
