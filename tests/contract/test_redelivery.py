"""What every store promises copies of a message, and attempts that follow each other."""

from __future__ import annotations

from celery_dedupe.core.asks import Attempt, Begun, Caller, FinishAsk, LeaseAsk, Over, Redelivered
from celery_dedupe.store.protocol import Store
from tests.contract.asks import (
    MINUTE,
    SHORT,
    begun,
    claim,
    holder_ids,
    leave_mark,
    near,
    pass_by,
    running_tokens,
    slot,
)
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestRedelivery:
    def test_a_copy_waits_while_the_first_one_runs(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys("b"), limit=5, lease=5000))
        store.claim([claim(keys("a"), blocked_by=())], Caller("t1"))
        reply = store.begin([pass_by(keys("a")), slot(keys("b"), limit=5)], Attempt("t1", "tok2", "n"))
        assert isinstance(reply, Redelivered)
        assert reply.index == 1
        assert near(reply.expires_in, 5000)
        assert running_tokens(store.read(keys("b"))) == ["tok1"]

    def test_it_takes_over_with_a_higher_fence_when_the_lease_has_ended(
        self, store: Store, keys: Keys
    ) -> None:
        (fence,) = begun(store, Attempt("t1", "tok1", "n"), slot(keys(), lease=SHORT))
        copy = Attempt("t1", "tok2", "n")
        wait_until(lambda: isinstance(store.begin([slot(keys())], copy), Begun), 5)
        (run,) = store.read(keys()).running
        assert run.token == "tok2"
        assert run.fence > fence

    def test_the_run_that_was_taken_over_from_frees_nothing_when_it_ends(
        self, store: Store, keys: Keys
    ) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys(), lease=SHORT))
        copy = Attempt("t1", "tok2", "n")
        wait_until(lambda: isinstance(store.begin([slot(keys())], copy), Begun), 5)
        before = store.read(keys())
        for outcome in ("free", "done", "queued"):
            finish = FinishAsk(keys(), "tok1", outcome, MINUTE)
            assert store.finish([finish], Attempt("t1", "tok1", "n"), well=True) == [False]
            assert store.read(keys()) == before
        assert store.renew([LeaseAsk(keys(), "tok1", MINUTE)]) == [False]

    def test_a_waiting_copy_learns_that_the_first_one_ended_well(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys()))
        copy = Attempt("t1", "tok2", "n")
        assert isinstance(store.begin([slot(keys(), mark=MINUTE)], copy), Redelivered)
        assert near(store.read(keys()).running[0].marked_until - store.clock())
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        (mark,) = store.read(keys()).ended
        assert (mark.task_id, mark.nonce) == ("t1", "n")
        assert near(mark.expires_at - store.clock())
        assert store.begin([slot(keys())], copy) == Over()
        assert store.begin([slot(keys())], Attempt("t1", "tok3", "n")) == Over(), "any number of copies"

    def test_the_mark_is_in_nobody_elses_way(self, store: Store, keys: Keys) -> None:
        leave_mark(store, keys())
        assert store.claim([claim(keys(), blocked_by=("queued", "running", "done"))], Caller("t2")) is None
        begun(store, Attempt("t2", "tok2", "n"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok2", "free")], Attempt("t2", "tok2"), well=True)
        begun(store, Attempt("t1", "tok3", "another message"), slot(keys()))

    def test_no_mark_is_left_where_no_copy_waits(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        assert not store.read(keys())

    def test_nor_after_a_bad_end_so_that_the_copy_runs(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys()))
        store.begin([slot(keys(), mark=MINUTE)], Attempt("t1", "tok2", "n"))
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=False)
        assert not store.read(keys())
        begun(store, Attempt("t1", "tok2", "n"), slot(keys()))

    def test_nor_for_a_copy_that_has_stopped_waiting(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys()))
        store.begin([slot(keys(), mark=SHORT)], Attempt("t1", "tok2", "n"))
        until = store.read(keys()).running[0].marked_until
        wait_until(lambda: store.clock() > until, 5)
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        assert not store.read(keys())

    def test_nor_for_another_message_of_the_same_task(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n0"), slot(keys()))
        reply = store.begin([slot(keys(), mark=MINUTE)], Attempt("t1", "tok2", "n1", generation=1))
        assert isinstance(reply, Redelivered)
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        assert not store.read(keys()).ended
        begun(store, Attempt("t1", "tok2", "n1", generation=1), slot(keys()))

    def test_the_mark_ends_by_itself(self, store: Store, keys: Keys) -> None:
        leave_mark(store, keys(), mark=200)
        wait_until(lambda: not store.read(keys()), 5)

    def test_one_message_has_one_mark(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1", "n"), slot(keys()))
        store.begin([slot(keys(), mark=MINUTE)], Attempt("t1", "copy", "n"))
        asks = [FinishAsk(keys(), "tok1", "free"), FinishAsk(keys(), "tok1", "free")]
        store.finish(asks, Attempt("t1", "tok1"), well=True)
        assert len(store.read(keys()).ended) == 1

    def test_an_empty_nonce_is_one_message(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok1"), slot(keys()))
        store.begin([slot(keys(), mark=MINUTE)], Attempt("t1", "tok2"))
        store.finish([FinishAsk(keys(), "tok1", "free")], Attempt("t1", "tok1"), well=True)
        (mark,) = store.read(keys()).ended
        assert mark.nonce == ""
        assert store.begin([slot(keys())], Attempt("t1", "tok2")) == Over()


class TestRetries:
    def test_a_retry_goes_back_to_queued_and_keeps_others_out(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok0"), slot(keys()))
        finish = FinishAsk(keys(), "tok0", "queued", 5000)
        assert store.finish([finish], Attempt("t1", "tok0", generation=1), well=False) == [True]
        record = store.read(keys())
        (part,) = record.queued
        assert (part.task_id, part.generation, record.running) == ("t1", 1, ())
        assert near(part.expires_at - store.clock(), 5000)
        assert holder_ids(store.claim([claim(keys())], Caller("t2"))) == ["t1"]
        begun(store, Attempt("t1", "tok1", generation=1), slot(keys()))

    def test_a_late_copy_of_an_earlier_attempt_is_over(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok0", "n0"), slot(keys()))
        finish = FinishAsk(keys(), "tok0", "queued", MINUTE)
        store.finish([finish], Attempt("t1", "tok0", generation=1), well=False)
        begun(store, Attempt("other", "other"), slot(keys()))
        late = Attempt("t1", "late", "n0", ended=("other",))
        before = store.read(keys())
        assert store.begin([slot(keys())], late) == Over()
        assert store.begin([pass_by(keys())], late) == Over()
        assert store.read(keys()) == before, "it costs the retry nothing"
        begun(store, Attempt("t1", "tok1", "n1", generation=1), slot(keys(), limit=5))
        assert store.begin([slot(keys(), limit=5)], late) == Over(), "nor does it run beside the retry"

    def test_even_where_another_lock_of_the_list_would_refuse_it(self, store: Store, keys: Keys) -> None:
        store.finish(
            [FinishAsk(keys("b"), "", "queued", MINUTE)], Attempt("t1", "", generation=1), well=False
        )
        begun(store, Attempt("t2", "tok2"), slot(keys("a")))
        before = store.read(keys("b"))
        assert store.begin([slot(keys("b")), slot(keys("a"))], Attempt("t1", "late")) == Over()
        assert store.read(keys("b")) == before

    def test_the_attempt_that_publishes_a_retry_is_not_over_before_it_ends(
        self, store: Store, keys: Keys
    ) -> None:
        # Killed between the claim and the send, the task has nothing left but its first message.
        begun(store, Attempt("t1", "tok0", "n0"), slot(keys(), lease=SHORT))
        assert store.claim([claim(keys())], Caller("t1", inside="t1", generation=1)) is None
        wait_until(lambda: not store.read(keys()).running, 5)
        begun(store, Attempt("t1", "again", "n0"), slot(keys()))

    def test_while_the_one_before_it_is(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1", inside="t1", generation=2))
        assert store.begin([slot(keys())], Attempt("t1", "late", "n0", generation=0)) == Over()
        begun(store, Attempt("t1", "again", "n1", generation=1), slot(keys()))
