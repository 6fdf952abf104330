"""What every store promises a run while it goes on and when it ends."""

from __future__ import annotations

import pytest

from celery_dedupe.core.asks import Attempt, Begun, Caller, FinishAsk, LeaseAsk
from celery_dedupe.core.parts import FOREVER, Done, Queued
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store
from tests.contract.asks import MINUTE, SHORT, begun, claim, near, queued_ids, running_tokens, slot
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestRenew:
    def test_it_prolongs_leases_from_now(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok"), slot(keys("a"), lease=5000), slot(keys("b"), lease=5000))
        assert store.renew([LeaseAsk(keys("a"), "tok", MINUTE)]) == [True]
        assert near(store.read(keys("a")).running[0].expires_at - store.clock())
        assert near(store.read(keys("b")).running[0].expires_at - store.clock(), 5000)

    def test_it_tells_which_are_lost_and_touches_nobody_elses(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys("a"), lease=SHORT), slot(keys("b")))
        wait_until(lambda: isinstance(store.begin([slot(keys("a"))], Attempt("t2", "tok2")), Begun), 5)
        before = store.read(keys("a"))
        asks = [LeaseAsk(keys(name), "tok1", MINUTE) for name in ("a", "b", "never")]
        assert store.renew(asks) == [False, True, False]
        assert store.read(keys("a")) == before
        assert not store.read(keys("never"))

    @pytest.mark.parametrize("seen", ["claim", "begin"])
    def test_a_run_that_was_ended_for_its_result_has_lost_nothing(
        self, store: Store, keys: Keys, seen: str
    ) -> None:
        """It is told so at its renewals and at its end, and what tells it is gone with it."""
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        if seen == "claim":
            ask = claim(keys(), blocked_by=("queued", "running"))
            assert store.claim([ask], Caller("t2", ended=("tok1",))) is None
        begun(store, Attempt("t2", "tok2", ended=("tok1",)), slot(keys()))

        renewals = [LeaseAsk(keys(), "tok1", MINUTE), LeaseAsk(keys(), "else", MINUTE)]
        assert store.renew(renewals) == [True, False]
        free = [FinishAsk(keys(), "tok1", "free")]
        assert store.finish(free, Attempt("t1", "tok1"), well=True) == [True]
        assert store.finish(free, Attempt("t1", "tok1"), well=True) == [False]
        assert running_tokens(store.read(keys())) == ["tok2"]
        assert store.read(keys()).ended == ()

    def test_a_lease_that_has_ended_is_not_revived(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys(), lease=SHORT))
        wait_until(lambda: not store.read(keys()), 5)
        assert store.renew([LeaseAsk(keys(), "tok1", MINUTE)]) == [False]
        assert not store.read(keys())

    def test_several_leases_on_one_key(self, store: Store, keys: Keys) -> None:
        for name in ("t1", "t2"):
            begun(store, Attempt(name, name), slot(keys(), limit=2, lease=5000))
        asks = [LeaseAsk(keys(), name, MINUTE) for name in ("t1", "t2", "t3", "t1")]
        assert store.renew(asks) == [True, True, False, True]
        assert all(near(run.expires_at - store.clock()) for run in store.read(keys()).running)

    def test_more_than_fit_into_one_script(self, store: Store, keys: Keys) -> None:
        names = [f"k{number}" for number in range(450)]
        for name in names[::2]:
            begun(store, Attempt("t1", name), slot(keys(name)))
        assert store.renew([LeaseAsk(keys(name), name, MINUTE) for name in names]) == [True, False] * 225
        assert store.renew([]) == []


class TestFinish:
    def test_it_frees_the_slot(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys("a")), slot(keys("b")))
        asks = [FinishAsk(keys("a"), "tok1", "free"), FinishAsk(keys("b"), "tok1", "free")]
        assert store.finish(asks, Attempt("t1", "tok1"), well=True) == [True, True]
        assert not store.read(keys("a"))
        assert not store.read(keys("b"))

    @pytest.mark.parametrize("outcome", ["free", "done", "queued", "withdrawn"])
    def test_after_the_lease_was_lost_it_touches_no_others_slot(
        self, store: Store, keys: Keys, outcome: str
    ) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys(), lease=SHORT))
        wait_until(lambda: isinstance(store.begin([slot(keys())], Attempt("t2", "tok2")), Begun), 5)
        before = store.read(keys())
        finish = FinishAsk(keys(), "tok1", outcome, MINUTE)
        assert store.finish([finish], Attempt("t1", "tok1"), well=True) == [False]
        assert store.read(keys()) == before

    @pytest.mark.parametrize("outcome", ["free", "queued", "withdrawn"])
    def test_a_late_or_repeated_release_holds_nothing(self, store: Store, keys: Keys, outcome: str) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        finish = FinishAsk(keys(), "tok1", outcome, MINUTE)
        store.finish([finish], Attempt("t1", "tok1", generation=1), well=True)
        if outcome == "queued":
            begun(store, Attempt("t1", "tok2", generation=1), slot(keys()))
            store.finish([FinishAsk(keys(), "tok2", "free")], Attempt("t1", "tok2"), well=True)
        assert store.finish([finish], Attempt("t1", "tok1", generation=1), well=True) == [False]
        assert not store.read(keys())

    def test_done_is_remembered_for_its_time(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok1", "done", MINUTE)], Attempt("t1", "tok1"), well=True)
        record = store.read(keys())
        assert record.done
        assert record == Record(done=Done("t1", record.done.expires_at, record.done.since))
        assert near(record.done.expires_at - store.clock())

    def test_or_for_ever(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok1", "done", FOREVER)], Attempt("t1", "tok1"), well=True)
        record = store.read(keys())
        assert record.done
        assert record == Record(done=Done("t1", FOREVER, record.done.since))

    def test_a_done_mark_ends_by_itself(self, store: Store, keys: Keys) -> None:
        store.finish([FinishAsk(keys(), "", "done", SHORT)], Attempt("t1", "tok1"), well=True)
        wait_until(lambda: not store.read(keys()), 5)

    def test_work_done_after_its_lease_was_lost_is_remembered_if_nobody_else_is_at_it(
        self, store: Store, keys: Keys
    ) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys(), lease=SHORT))
        wait_until(lambda: not store.read(keys()), 5)
        done = FinishAsk(keys(), "tok1", "done", MINUTE)
        assert store.finish([done], Attempt("t1", "tok1"), well=True) == [False]
        assert store.read(keys()).done
        before = store.read(keys())
        late = FinishAsk(keys(), "tok2", "done", FOREVER)
        assert store.finish([late], Attempt("t2", "tok2"), well=True) == [False]
        assert store.read(keys()) == before, "the first mark stays"

    def test_withdrawn_gives_back_a_claim_that_outlives_the_run(self, store: Store, keys: Keys) -> None:
        for name in ("t1", "t2"):
            store.claim([claim(keys(), blocked_by=())], Caller(name))
        assert store.finish([FinishAsk(keys(), "", "withdrawn")], Attempt("t1", ""), well=False) == [True]
        assert queued_ids(store.read(keys())) == ["t2"]

    def test_free_leaves_queued_claims_alone(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        for name in ("t1", "t2"):
            store.claim([claim(keys(), blocked_by=())], Caller(name))
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        assert queued_ids(store.read(keys())) == ["t1", "t2"]

    def test_a_lock_without_a_slot_is_always_found(self, store: Store, keys: Keys) -> None:
        ask = FinishAsk(keys(), "", "queued", MINUTE)
        assert store.finish([ask], Attempt("t1", "tok", generation=2), well=False) == [True]
        (part,) = store.read(keys()).queued
        assert part == Queued("t1", part.expires_at, 2, part.since)

    def test_two_locks_with_one_key_are_one_slot(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()), slot(keys()), slot(keys("other")))
        asks = [
            FinishAsk(keys(), "tok1", "free"),
            FinishAsk(keys("other"), "tok1", "free"),
            FinishAsk(keys(), "tok1", "done", MINUTE),
        ]
        assert store.finish(asks, Attempt("t1", "tok1"), well=True) == [True, True, True]
        record = store.read(keys())
        assert record == Record(done=record.done)
        assert record.done
