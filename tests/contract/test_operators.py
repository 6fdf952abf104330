"""What every store promises people."""

from __future__ import annotations

import time

import pytest

from celery_dedupe.core.asks import Attempt, Caller, FinishAsk
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store
from tests.contract.asks import MINUTE, SHORT, begun, claim, leave_mark, queued_ids, running_tokens, slot
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestOperators:
    def test_an_unknown_key_has_an_empty_record(self, store: Store, keys: Keys) -> None:
        assert store.read(keys()) == Record()

    def test_evict_frees_what_is_queued_and_done(self, store: Store, keys: Keys) -> None:
        _fill(store, keys())
        assert store.evict([keys(), keys("none")]) == 3
        record = store.read(keys())
        assert (record.queued, record.done) == ((), None)
        assert running_tokens(record) == ["run"]
        assert [mark.task_id for mark in record.ended] == ["t1"]

    def test_and_running_slots_if_asked(self, store: Store, keys: Keys) -> None:
        _fill(store, keys())
        assert store.evict([keys()], running=True) == 4
        assert store.read(keys()) == Record()
        assert store.evict([keys()], running=True) == 0
        assert store.evict([]) == 0

    def test_parts_whose_time_has_passed_are_not_counted(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys(), ttl=SHORT)], Caller("t1"))
        begun(store, Attempt("r", "tok"), slot(keys()))
        wait_until(lambda: not store.read(keys()).queued, 5)
        assert store.evict([keys()]) == 0

    def test_scan_finds_what_matches_in_any_number_of_steps(self, store: Store, keys: Keys) -> None:
        for number in range(450):
            store.claim([claim(keys(f"scope{number % 2}:{number:03}"))], Caller(f"t{number}"))
        found = dict(store.scan(f"{keys.prefix}:scope1:*"))
        assert sorted(found) == [keys(f"scope1:{number:03}") for number in range(1, 450, 2)]
        assert all(queued_ids(record) == [f"t{int(key[-3:])}"] for key, record in found.items())
        assert store.evict(found) == 225
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


def _fill(store: Store, key: str) -> None:
    """Two queued, one running, one done, one mark."""
    leave_mark(store, key)
    store.finish([FinishAsk(key, "", "done", MINUTE)], Attempt("d", ""), well=True)
    for name in ("q1", "q2"):
        store.claim([claim(key, blocked_by=())], Caller(name))
    begun(store, Attempt("r", "run"), slot(key))
