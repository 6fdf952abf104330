"""What every store promises a start."""

from __future__ import annotations

import pytest

from celery_dedupe.core.asks import Attempt, Begun, Caller, FinishAsk, Over, Refused
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store
from tests.contract.asks import (
    MINUTE,
    SHORT,
    begun,
    claim,
    free,
    near,
    once,
    pass_by,
    queued_ids,
    running_tokens,
    slot,
)
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestBegin:
    def test_it_ends_the_claim_and_takes_the_slot(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        attempt = Attempt("t1", "tok", "nonce", 2, "celery@host", 1234)
        (fence,) = begun(store, attempt, slot(keys(), lease=7000))
        record = store.read(keys())
        (run,) = record.running
        assert (run.token, run.task_id, run.nonce, run.fence) == ("tok", "t1", "nonce", fence)
        assert (run.generation, run.node, run.started, run.marked_until) == (2, "celery@host", 1234, 0)
        assert near(run.expires_at - store.clock(), 7000)
        assert record == Record(running=(run,))

    def test_a_lock_without_slots_only_ends_the_claim(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        store.claim([claim(keys(), blocked_by=())], Caller("t2"))
        assert begun(store, Attempt("t1", "tok"), pass_by(keys())) == (0,)
        record = store.read(keys())
        assert (queued_ids(record), record.running) == (["t2"], ())

    def test_no_claim_is_needed(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("other"))
        begun(store, Attempt("t1", "tok"), slot(keys()))
        assert queued_ids(store.read(keys())) == ["other"]

    def test_a_second_task_is_refused(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", started=5), slot(keys()))
        reply = store.begin([slot(keys())], Attempt("t2", "tok2"))
        assert isinstance(reply, Refused)
        (holder,) = reply.holders
        assert (holder.state, holder.task_id, holder.token, holder.started) == ("running", "t1", "tok1", 5)
        assert near(holder.expires_in)
        assert running_tokens(store.read(keys())) == ["tok1"]

    def test_limit_lets_in_so_many_each_with_a_lease_of_its_own(self, store: Store, keys: Keys) -> None:
        for place in range(3):
            begun(
                store, Attempt(f"t{place}", f"tok{place}"), slot(keys(), limit=3, lease=MINUTE + 1000 * place)
            )
        reply = store.begin([slot(keys(), limit=3)], Attempt("t3", "tok3"))
        assert isinstance(reply, Refused)
        assert [holder.task_id for holder in reply.holders] == ["t0", "t1", "t2"]
        leases = [run.expires_at for run in store.read(keys()).running]
        assert leases == sorted(set(leases))
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        begun(store, Attempt("t3", "tok3"), slot(keys(), limit=3))
        assert running_tokens(store.read(keys())) == ["tok0", "tok2", "tok3"]

    def test_a_slot_whose_lease_has_ended_is_free(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t0", "tok0"), slot(keys(), limit=2))
        begun(store, Attempt("t1", "tok1"), slot(keys(), limit=2, lease=SHORT))
        wait_until(lambda: isinstance(store.begin([slot(keys(), limit=2)], Attempt("t2", "tok2")), Begun), 5)
        assert running_tokens(store.read(keys())) == ["tok0", "tok2"]

    def test_fences_grow_while_the_record_lives_and_after_it_is_gone(self, store: Store, keys: Keys) -> None:
        fences: list[int] = []
        for place in range(5):
            fences += begun(store, Attempt(f"t{place}", f"tok{place}"), slot(keys(), limit=9))
        for place in range(5):
            store.finish([FinishAsk(keys(), f"tok{place}", "free")], Attempt(f"t{place}", ""), well=True)
        assert not store.read(keys())
        fences += begun(store, Attempt("a", "a", nonce="n"), slot(keys(), lease=SHORT))
        wait_until(lambda: not store.read(keys()), 5)
        fences += begun(store, Attempt("b", "b"), slot(keys()))
        free(store, [keys()])
        fences += begun(store, Attempt("c", "c"), slot(keys()))
        assert fences == sorted(set(fences))

    def test_a_repeated_begin_after_a_lost_reply_gives_the_same_slot(self, store: Store, keys: Keys) -> None:
        attempt = Attempt("t1", "tok", "n")
        fences = begun(store, attempt, slot(keys("a"), lease=5000), slot(keys("b")))
        store.begin([slot(keys("a"), mark=MINUTE)], Attempt("t1", "copy", "n"))
        marked = store.read(keys("a")).running[0].marked_until
        assert begun(store, attempt, slot(keys("a")), slot(keys("b"))) == fences
        (run,) = store.read(keys("a")).running
        assert near(run.expires_at - store.clock())
        assert run.marked_until == marked > 0

    def test_it_completes_a_begin_that_has_lost_a_part(self, store: Store, keys: Keys) -> None:
        attempt = Attempt("t1", "tok")
        first, _ = begun(store, attempt, slot(keys("a")), slot(keys("b")))
        free(store, [keys("b")])
        again, other = begun(store, attempt, slot(keys("a")), slot(keys("b")))
        assert again == first
        assert store.read(keys("b")).running[0].fence == other > 0

    def test_several_locks_are_begun_together(self, store: Store, keys: Keys) -> None:
        asks = [slot(keys("a")), pass_by(keys("b")), slot(keys("c"), limit=4)]
        store.claim([claim(keys(name)) for name in "abc"], Caller("t1"))
        fences = begun(store, Attempt("t1", "tok"), *asks)
        assert [fence > 0 for fence in fences] == [True, False, True]
        assert [running_tokens(store.read(keys(name))) for name in "abc"] == [["tok"], [], ["tok"]]
        assert [store.read(keys(name)).queued for name in "abc"] == [(), (), ()]

    @pytest.mark.parametrize("held", ["a", "c"])
    def test_or_none_of_them(self, store: Store, keys: Keys, held: str) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys(held)))
        reply = store.begin([slot(keys("a")), pass_by(keys("b")), slot(keys("c"))], Attempt("t2", "tok2"))
        assert isinstance(reply, Refused)
        assert (reply.index, reply.holders[0].task_id) == ("abc".index(held), "t1")
        for name in "abc":
            assert running_tokens(store.read(keys(name))) == (["tok1"] if name == held else [])

    def test_a_refusal_holds_queued_claims_for_so_long_or_gives_them_up(
        self, store: Store, keys: Keys
    ) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys("b")))
        store.claim([claim(keys(name), blocked_by=()) for name in "abc"], Caller("t2"))
        asks = [pass_by(keys("a"), hold=5000), slot(keys("b"), hold=9000), slot(keys("c"))]
        assert isinstance(store.begin(asks, Attempt("t2", "tok2", generation=3)), Refused)
        for name, hold in (("a", 5000), ("b", 9000)):
            (part,) = store.read(keys(name)).queued
            assert (part.task_id, part.generation) == ("t2", 3)
            assert near(part.expires_at - store.clock(), hold)
        assert not store.read(keys("c"))

    def test_a_hold_claims_again_what_had_lapsed(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        assert isinstance(store.begin([slot(keys(), hold=MINUTE)], Attempt("t2", "tok2")), Refused)
        assert queued_ids(store.read(keys())) == ["t2"]

    def test_of_two_locks_with_one_key_the_one_that_holds_counts(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        for asks in (
            [pass_by(keys(), hold=MINUTE), slot(keys())],
            [slot(keys()), pass_by(keys(), hold=MINUTE)],
        ):
            assert isinstance(store.begin(asks, Attempt("t2", "tok2")), Refused)
            assert queued_ids(store.read(keys())) == ["t2"]

    def test_one_key_twice_is_one_slot(self, store: Store, keys: Keys) -> None:
        asks = [slot(keys()), slot(keys(), lease=5000), pass_by(keys())]
        first, second, none = begun(store, Attempt("t1", "tok"), *asks)
        assert (first, none) == (second, 0)
        assert running_tokens(store.read(keys())) == ["tok"]

    def test_a_run_known_to_have_ended_makes_room(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        assert isinstance(store.begin([slot(keys())], Attempt("t2", "tok2", ended=("other",))), Refused)
        begun(store, Attempt("t2", "tok2", ended=("tok1",)), slot(keys()))
        assert running_tokens(store.read(keys())) == ["tok2"]

    def test_even_where_the_start_is_refused_by_another_lock(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys("a")), slot(keys("b")))
        begun(store, Attempt("t3", "tok3"), slot(keys("c")))
        asks = [slot(keys(name), hold=MINUTE) for name in "cab"]
        assert isinstance(store.begin(asks, Attempt("t2", "tok2", ended=("tok1",))), Refused)
        assert not isinstance(store.begin(asks[1:], Attempt("t2", "tok2", ended=("tok1",))), Refused)

    def test_what_is_done_refuses_where_it_is_remembered(self, store: Store, keys: Keys) -> None:
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("t1", ""), well=True)
        reply = store.begin([once(keys())], Attempt("t2", "tok2"))
        assert isinstance(reply, Refused)
        assert (reply.holders[0].state, reply.holders[0].task_id) == ("done", "t1")
        begun(store, Attempt("t2", "tok2"), slot(keys()))

    def test_a_copy_of_what_is_done_is_over(self, store: Store, keys: Keys) -> None:
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("t1", ""), well=True)
        assert store.begin([once(keys())], Attempt("t1", "tok2")) == Over()
