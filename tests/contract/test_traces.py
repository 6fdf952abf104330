"""What every store promises of work to be done once, whose process died before it could say how it ended.

The names of the tests are the promises.
"""

from __future__ import annotations

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Caller, FinishAsk, Refused
from celery_dedupe.core.parts import Holder
from celery_dedupe.store.protocol import Store
from tests.contract.asks import MINUTE, SHORT, claim, free, near
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until

ONCE = ("queued", "running", "done")
DEAD = Attempt("t1", "tok", started=123)


def once(key: str, lease: int = MINUTE) -> BeginAsk:
    return BeginAsk(key, slot=True, lease=lease, remembers=True, trace=MINUTE)


def dies(store: Store, key: str) -> None:
    assert isinstance(store.begin([once(key, lease=SHORT)], DEAD), Begun)
    wait_until(lambda: not store.read(key).running)


def lapsed(reply: object) -> Holder:
    assert isinstance(reply, Refused)
    (holder,) = reply.holders
    assert (holder.state, holder.task_id, holder.token, holder.started) == ("lapsed", "t1", "tok", 123)
    assert near(holder.expires_in)
    return holder


class TestTraces:
    def test_a_run_that_lives_is_running(self, store: Store, keys: Keys) -> None:
        store.begin([once(keys())], DEAD)
        reply = store.claim([claim(keys(), blocked_by=ONCE)], Caller("t2"))
        assert isinstance(reply, Refused)
        assert [holder.state for holder in reply.holders] == ["running"]

    def test_a_dead_run_is_told_to_a_publish(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        lapsed(store.claim([claim(keys(), blocked_by=ONCE)], Caller("t2")))
        assert not store.read(keys()).queued

    def test_a_dead_run_is_told_to_a_start(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        lapsed(store.begin([once(keys())], Attempt("t2", "other")))
        assert not store.read(keys()).running

    def test_a_dead_run_is_in_nobody_elses_way(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        assert store.claim([claim(keys(), blocked_by=("queued", "running"))], Caller("t2")) is None
        assert isinstance(store.begin([BeginAsk(keys(), slot=True, lease=MINUTE)], Attempt("t2", "b")), Begun)

    def test_a_dead_run_is_not_in_its_own_tasks_way(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        assert store.claim([claim(keys(), blocked_by=ONCE)], Caller("t1")) is None
        assert isinstance(store.begin([once(keys())], Attempt("t1", "tok2")), Begun)
        (trace,) = store.read(keys()).traces
        assert trace.token == "tok2", "one trace a task"

    def test_whoever_knows_that_it_is_over_is_let_through(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        assert store.claim([claim(keys(), blocked_by=ONCE)], Caller("t2", ended=("tok",))) is None
        assert not store.read(keys()).traces

    def test_a_start_that_knows_is_let_through(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        assert isinstance(store.begin([once(keys())], Attempt("t2", "other", ended=("tok",))), Begun)

    def test_whoever_knows_that_it_ended_well_says_so_for_it(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        store.finish([FinishAsk(keys(), "tok", "done", MINUTE)], Attempt("t1", "tok"), well=True)
        record = store.read(keys())
        assert record.done is not None
        assert record.done.task_id == "t1"
        assert not record.traces

    def test_a_run_that_tells_its_end_leaves_no_trace(self, store: Store, keys: Keys) -> None:
        for outcome in ("free", "done"):
            store.begin([once(keys(outcome))], DEAD)
            store.finish([FinishAsk(keys(outcome), "tok", outcome, MINUTE)], DEAD, well=True)
            assert not store.read(keys(outcome)).traces

    def test_what_is_done_is_told_before_what_may_be(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        store.finish([FinishAsk(keys(), "", "done", MINUTE)], Attempt("t3", ""), well=True)
        reply = store.claim([claim(keys(), blocked_by=ONCE)], Caller("t2"))
        assert isinstance(reply, Refused)
        assert [holder.state for holder in reply.holders] == ["done"]

    def test_whoever_kills_a_run_does_not_know_how_it_ended(self, store: Store, keys: Keys) -> None:
        store.begin([once(keys())], DEAD)
        store.withdraw([keys()], "t1", running=True)
        lapsed(store.claim([claim(keys(), blocked_by=ONCE)], Caller("t2")))

    def test_an_operator_frees_it_with_what_runs(self, store: Store, keys: Keys) -> None:
        dies(store, keys())
        assert free(store, [keys()], ("queued", "running", "done")) == 0
        assert store.read(keys()).traces
        assert free(store, [keys()], ("lapsed",)) == 1
        assert not store.read(keys())
