"""What every store promises a publish. The names of the tests are the promises."""

from __future__ import annotations

import pytest

from celery_dedupe.core.asks import Attempt, Caller, FinishAsk, Refused
from celery_dedupe.core.parts import FOREVER, Holder
from celery_dedupe.core.record import Record
from celery_dedupe.store.protocol import Store
from tests.contract.asks import (
    MINUTE,
    SHORT,
    begun,
    claim,
    holder_ids,
    near,
    queued_ids,
    running_tokens,
    slot,
)
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


class TestClaim:
    def test_a_claim_is_recorded_with_its_expiry(self, store: Store, keys: Keys) -> None:
        assert store.claim([claim(keys(), ttl=5000)], Caller("t1")) is None
        (part,) = store.read(keys()).queued
        assert (part.task_id, part.generation) == ("t1", 0)
        assert near(part.expires_at - store.clock(), 5000)
        assert store.read(keys()) == Record(queued=(part,))

    def test_another_task_is_refused_and_told_who_holds_it(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        reply = store.claim([claim(keys())], Caller("t2"))
        assert isinstance(reply, Refused)
        (holder,) = reply.holders
        assert reply.index == 0
        assert (holder.state, holder.task_id, holder.token, holder.started) == ("queued", "t1", "", 0)
        assert near(holder.expires_in)
        assert queued_ids(store.read(keys())) == ["t1"]

    def test_a_running_holder_is_told_with_its_token_and_start(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok", started=123), slot(keys()))
        reply = store.claim([claim(keys(), blocked_by=("running",))], Caller("t2"))
        assert isinstance(reply, Refused)
        (holder,) = reply.holders
        assert (holder.state, holder.task_id, holder.token, holder.started) == ("running", "t1", "tok", 123)
        assert near(holder.expires_in)

    def test_a_done_holder_is_told(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok", "done", MINUTE)], Attempt("t1", "tok"), well=True)
        reply = store.claim([claim(keys(), blocked_by=("done",))], Caller("t2"))
        assert isinstance(reply, Refused)
        assert (reply.holders[0].state, reply.holders[0].task_id) == ("done", "t1")
        assert near(reply.holders[0].expires_in)

    def test_what_is_done_for_ever_has_no_time_left_to_tell(self, store: Store, keys: Keys) -> None:
        store.finish([FinishAsk(keys(), "", "done", FOREVER)], Attempt("t1", "tok"), well=True)
        reply = store.claim([claim(keys(), blocked_by=("done",))], Caller("t1"))
        assert reply == Refused(0, (Holder("done", "t1", None),))

    def test_only_the_states_asked_for_refuse(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("q"))
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("d", ""), well=True)
        begun(store, Attempt("r", "tok"), slot(keys()))
        assert store.claim([claim(keys(), blocked_by=())], Caller("t")) is None
        assert store.read(keys()).done
        for state, holder in (("queued", "q"), ("running", "r"), ("done", "d")):
            reply = store.claim([claim(keys(), blocked_by=(state,))], Caller("x"))
            assert isinstance(reply, Refused)
            assert (reply.holders[0].state, reply.holders[0].task_id) == (state, holder)

    def test_who_waits_is_named_before_who_runs_before_what_is_done(self, store: Store, keys: Keys) -> None:
        everything = claim(keys(), blocked_by=("queued", "running", "done"))
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("d", ""), well=True)
        assert holder_ids(store.claim([everything], Caller("x"))) == ["d"]
        begun(store, Attempt("r", "tok"), slot(keys()))
        assert holder_ids(store.claim([everything], Caller("x"))) == ["r"]
        store.claim([claim(keys(), blocked_by=())], Caller("q"))
        assert holder_ids(store.claim([everything], Caller("x"))) == ["q"]

    def test_all_holders_of_that_state_are_named(self, store: Store, keys: Keys) -> None:
        for name in ("r1", "r2", "r3"):
            begun(store, Attempt(name, name), slot(keys(), limit=3))
        reply = store.claim([claim(keys(), blocked_by=("running",))], Caller("x"))
        assert holder_ids(reply) == ["r1", "r2", "r3"]

    def test_the_same_id_never_blocks_itself(self, store: Store, keys: Keys) -> None:
        everything = claim(keys(), ttl=5000, blocked_by=("queued", "running"))
        store.claim([claim(keys())], Caller("t1"))
        assert store.claim([everything], Caller("t1")) is None
        (part,) = store.read(keys()).queued
        assert near(part.expires_at - store.clock(), 5000)
        begun(store, Attempt("t1", "tok"), slot(keys()))
        assert store.claim([everything], Caller("t1", generation=1)) is None

    def test_a_run_does_not_block_what_its_own_body_publishes(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("outer", "tok"), slot(keys()))
        ask = claim(keys(), blocked_by=("queued", "running"))
        assert holder_ids(store.claim([ask], Caller("next"))) == ["outer"]
        assert store.claim([ask], Caller("next", inside="outer")) is None
        assert holder_ids(store.claim([ask], Caller("third", inside="outer"))) == ["next"]

    def test_a_claim_that_outlives_the_start_of_its_task_goes_over_to_the_successor(
        self, store: Store, keys: Keys
    ) -> None:
        """Or the period of the first would refuse the third of a task that publishes its own next run."""
        ask = claim(keys(), blocked_by=("queued",), ttl=MINUTE)
        store.claim([ask], Caller("first"))
        assert store.claim([ask], Caller("second", inside="first")) is None
        assert [part.task_id for part in store.read(keys()).queued] == ["second"]
        assert store.claim([ask], Caller("third", inside="second")) is None
        assert holder_ids(store.claim([ask], Caller("stranger"))) == ["third"]

    def test_what_is_done_blocks_even_its_own_id_and_its_own_run(self, store: Store, keys: Keys) -> None:
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("t1", ""), well=True)
        ask = claim(keys(), blocked_by=("done",))
        assert holder_ids(store.claim([ask], Caller("t1"))) == ["t1"]
        assert holder_ids(store.claim([ask], Caller("t2", inside="t1"))) == ["t1"]

    def test_a_run_known_to_have_ended_does_not_block_and_loses_its_slot(
        self, store: Store, keys: Keys
    ) -> None:
        begun(store, Attempt("r1", "tok1"), slot(keys(), limit=2))
        begun(store, Attempt("r2", "tok2"), slot(keys(), limit=2))
        ask = claim(keys(), blocked_by=("running",))
        assert holder_ids(store.claim([ask], Caller("x", ended=("tok1", "unknown")))) == ["r2"]
        assert running_tokens(store.read(keys())) == ["tok1", "tok2"], "a refusal changes nothing"
        assert store.claim([ask], Caller("x", ended=("tok1", "tok2"))) is None
        record = store.read(keys())
        assert (queued_ids(record), running_tokens(record)) == (["x"], [])

    def test_several_locks_are_claimed_together(self, store: Store, keys: Keys) -> None:
        assert store.claim([claim(keys("a"), 5000), claim(keys("b"), 9000)], Caller("t1")) is None
        for name, ttl in (("a", 5000), ("b", 9000)):
            (part,) = store.read(keys(name)).queued
            assert near(part.expires_at - store.clock(), ttl)

    @pytest.mark.parametrize("held", ["a", "b", "c"])
    def test_or_none_of_them(self, store: Store, keys: Keys, held: str) -> None:
        store.claim([claim(keys(held))], Caller("t1"))
        reply = store.claim([claim(keys(name)) for name in "abc"], Caller("t2"))
        assert isinstance(reply, Refused)
        assert (reply.index, reply.holders[0].task_id) == ("abc".index(held), "t1")
        for name in "abc":
            assert queued_ids(store.read(keys(name))) == (["t1"] if name == held else [])

    def test_one_key_twice_in_a_list_is_one_claim(self, store: Store, keys: Keys) -> None:
        assert store.claim([claim(keys()), claim(keys())], Caller("t1")) is None
        assert queued_ids(store.read(keys())) == ["t1"]
        reply = store.claim([claim(keys("free")), claim(keys()), claim(keys())], Caller("t2"))
        assert isinstance(reply, Refused)
        assert reply.index == 1
        assert not store.read(keys("free"))

    def test_a_claim_ends_by_itself(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys(), ttl=SHORT)], Caller("t1"))
        wait_until(lambda: store.claim([claim(keys())], Caller("t2")) is None, 5)
        assert queued_ids(store.read(keys())) == ["t2"]

    def test_it_does_not_keep_one_that_ends_later_alive(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys(), ttl=SHORT)], Caller("t1"))
        begun(store, Attempt("r", "tok"), slot(keys()))
        wait_until(lambda: not store.read(keys()).queued, 5)
        assert running_tokens(store.read(keys())) == ["tok"]

    def test_a_claim_without_time_is_none(self, store: Store, keys: Keys) -> None:
        assert store.claim([claim(keys(), ttl=0)], Caller("t1")) is None
        assert not store.read(keys())


class TestWithdraw:
    def test_it_gives_a_queued_claim_back(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys("a")), claim(keys("b"))], Caller("t1"))
        store.withdraw([keys("a"), keys("b")], "t1")
        assert not store.read(keys("a"))
        assert not store.read(keys("b"))

    def test_another_owners_claim_stays(self, store: Store, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        store.withdraw([keys()], "t2")
        assert queued_ids(store.read(keys())) == ["t1"]

    def test_running_slots_stay_unless_asked_for(self, store: Store, keys: Keys) -> None:
        for name in ("t1", "t2"):
            begun(store, Attempt(name, f"token of {name}"), slot(keys(), limit=2))
        store.withdraw([keys()], "t1")
        assert len(store.read(keys()).running) == 2
        store.withdraw([keys()], "t1", running=True)
        assert running_tokens(store.read(keys())) == ["token of t2"]

    def test_what_is_not_there_is_no_error(self, store: Store, keys: Keys) -> None:
        store.withdraw([keys(), keys()], "t1", running=True)
        store.withdraw([], "t1")
        assert not store.read(keys())
