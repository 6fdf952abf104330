"""A task with locks in two stores: what one store gives is given back where the other refuses or is away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dedupe import ConfigurationError, Policy, signals
from celery_dedupe.core.verdicts import Quiet, Raise, Skip, Wait
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.guard import claims, runs
from celery_dedupe.guard.runs import Run
from celery_dedupe.store.breaker import PAUSE
from celery_dedupe.store.memory import MemoryStore
from tests.harness.waiting import wait_until
from tests.unit.bench import Bench
from tests.unit.conftest import NOTHING, TestedStore

FINISHED, RUNNING = Policy(lock="until_finished"), Policy(lock="while_running")
QUEUE = Policy(lock="queue_and_run")
ONCE = Policy(lock="once", store="ledger")
LAX = Policy(lock="once", store="ledger", on_store_error="allow")
THERE = replace(FINISHED, store="ledger")


def ledger(b: Bench) -> TestedStore:
    return b.stores["ledger"]


def hold(store: TestedStore, key: str, task_id: str = "other") -> Run:
    """Another program's run in one of the stores."""
    other = Bench(RUNNING)
    other.guard.store.places["default"].store = store
    run = other.begin(task_id, keys=(key,))
    store.calls.clear()
    return run


def held(b: Bench) -> list[dict[str, list[str]]]:
    return [store.held() for store in b.stores.values()]


class TestPublish:
    def test_one_round_trip_a_store(self, bench):
        b = bench(FINISHED, ONCE, replace(FINISHED, scope="x"), THERE)
        assert b.claim("a") is True
        assert [store.calls for store in b.stores.values()] == [["claim"], ["claim"]]
        assert held(b) == [{**NOTHING, "queued": ["a", "a"]}] * 2

    def test_what_earlier_stores_gave_is_given_back(self, bench):
        b = bench(FINISHED, ONCE)
        hold(ledger(b), "k1")
        drop = b.claim("a")
        assert (drop.policy, drop.duplicate.task_id, drop.duplicate.key) == (ONCE, "other", "ledger/k1")
        assert held(b) == [NOTHING, {**NOTHING, "running": ["other"]}]
        assert (b.store.calls, ledger(b).calls) == (["claim", "withdraw"], ["claim"])

    def test_a_store_that_refuses_first_saves_the_others_the_question(self, bench):
        b = bench(FINISHED, ONCE)
        hold(b.store, "k0")
        assert b.claim("a").policy == FINISHED
        assert ledger(b).calls == []

    def test_a_store_that_is_away_is_for_its_own_policies_to_judge(self, bench):
        strict = bench(FINISHED, ONCE)
        ledger(strict).down = True
        with pytest.raises(StoreUnavailable) as raised:
            strict.claim("a")
        assert raised.value.store == "ledger"
        assert str(raised.value) == "store 'ledger': the store is away"
        assert strict.store.held() == NOTHING

        lax = bench(replace(FINISHED, on_store_error="refuse"), LAX)
        ledger(lax).down = True
        assert lax.claim("a") is True
        assert lax.store.held() == {**NOTHING, "queued": ["a"]}
        (event,) = lax.told(signals.RanUnprotected)
        assert event.reason == "store 'ledger': the store is away"

    def test_it_costs_the_others_nothing_once_it_is_known(self, bench, log):
        b = bench(FINISHED, LAX)
        ledger(b).down = True
        for number in range(3):
            b.store.calls.clear()
            b.claim(f"t{number}", keys=(f"a{number}", "ledger/k1"))
        assert b.store.calls == ["claim"]
        assert ledger(b).calls.count("claim") == 1
        (line,) = [record.getMessage() for record in log.records if record.levelname == "ERROR"]
        assert line.startswith("store 'ledger': the store is away; policies decide")

        ledger(b).down = False
        b.clock.turn(PAUSE)
        b.claim("b", keys=("b", "ledger/k1"))
        assert ledger(b).held() == {**NOTHING, "queued": ["b"]}
        assert "the claim store 'ledger' answers again" in log.text

    def test_the_default_store_may_be_away_too(self, bench):
        b = bench(FINISHED, ONCE)
        b.store.down = True
        assert b.claim("a") is True
        assert isinstance(b.claim("b"), claims.Drop), "once still counts"

    def test_a_duplicate_leaves_nothing_in_a_store_whose_answer_was_lost(self, bench):
        b = bench(LAX, FINISHED)
        hold(b.store, "k1")
        ledger(b).mute = {"claim"}
        assert isinstance(b.claim("a"), claims.Drop)
        assert ledger(b).held() == {**NOTHING, "queued": ["a"]}
        ledger(b).mute = set()
        b.clock.turn(PAUSE)
        wait_until(lambda: ledger(b).held() == NOTHING, 20)

    def test_a_failed_publish_gives_back_in_every_store(self, bench):
        b = bench(FINISHED, ONCE)
        b.claim("a")
        b.guard.withdraw(b.ticket("a").keys, "a")
        assert held(b) == [NOTHING, NOTHING]

    def test_keys_in_a_store_that_is_unknown_here_run_out(self, bench):
        b = bench(FINISHED)
        b.claim("a")
        b.guard.withdraw(("former/k", "k0"), "a")
        assert b.store.held() == NOTHING


class TestStart:
    def test_slots_in_both_and_one_round_trip_each(self, bench):
        b = bench(FINISHED, ONCE)
        b.claim("a")
        run = b.begin("a")
        assert [lease.key for lease in run.leases] == ["k0", "ledger/k1"]
        assert all(lease.fence for lease in run.leases)
        runs.finish(b.guard, run, "succeeded")
        assert held(b) == [NOTHING, {**NOTHING, "done": ["a"]}]
        for store in b.stores.values():
            assert store.calls == ["claim", "begin", "finish"]
        assert b.claim("b").duplicate.state == "done"

    def test_a_slot_that_was_given_is_given_back(self, bench):
        b = bench(FINISHED, ONCE)
        b.claim("a")
        hold(ledger(b), "k1")
        assert isinstance(b.begin("a"), Skip)
        assert held(b) == [NOTHING, {**NOTHING, "running": ["other"]}]

    @pytest.mark.parametrize("first", [True, False])
    def test_a_run_that_comes_back_keeps_its_claims_in_all_stores(self, bench, first):
        b = bench(QUEUE, replace(QUEUE, store="ledger"))
        b.claim("a")
        other = hold(b.store, "k0") if first else hold(ledger(b), "k1")
        verdict = b.begin("a")
        assert isinstance(verdict, Wait)
        assert [state["queued"] for state in held(b)] == [["a"], ["a"]]
        assert [run for state in held(b) for run in state["running"]] == ["other"]
        del other

    def test_a_copy_waits_and_ends_quietly(self, bench):
        b = bench(FINISHED, ONCE)
        first = b.begin("a")
        assert isinstance(b.begin("a"), Wait)
        runs.finish(b.guard, first, "succeeded")
        assert isinstance(b.begin("a"), Quiet)
        assert held(b) == [NOTHING, {**NOTHING, "done": ["a"]}]

    def test_without_one_store_the_others_count(self, bench):
        b = bench(FINISHED, LAX)
        ledger(b).down = True
        run = b.begin("a")
        assert [lease.key for lease in run.leases] == ["k0"]
        assert isinstance(b.begin("b"), Skip)
        ledger(b).down = False
        b.clock.turn(PAUSE)
        runs.finish(b.guard, run, "succeeded")
        assert held(b) == [NOTHING, {**NOTHING, "done": ["a"]}]

    def test_a_policy_that_refuses_waits_for_its_store_and_holds_nothing_elsewhere(self, bench):
        b = bench(QUEUE, ONCE)
        b.claim("a")
        ledger(b).down = True
        verdict = b.begin("a")
        assert isinstance(verdict, Wait)
        assert b.store.held() == {**NOTHING, "queued": ["a"]}
        failed = b.begin("a", waited=7200.0)
        assert isinstance(failed, Raise)
        assert failed.reason.startswith("store 'ledger': the store is away")
        assert b.store.held() == NOTHING

    def test_an_end_frees_the_one_at_once_and_the_other_when_it_is_back(self, bench):
        b = bench(FINISHED, ONCE)
        run = b.begin("a")
        ledger(b).down = True
        runs.finish(b.guard, run, "succeeded")
        assert held(b) == [NOTHING, {**NOTHING, "running": ["a"]}]
        finishes = b.store.calls.count("finish")
        ledger(b).down = False
        b.clock.turn(PAUSE)
        wait_until(lambda: ledger(b).held() == {**NOTHING, "done": ["a"]}, 20)
        assert b.store.calls.count("finish") == finishes, "the other is not told again"

    def test_a_result_that_is_final_ends_its_slot_in_its_store(self, bench):
        b = bench(FINISHED, THERE)
        stale = b.begin("a")
        b.states["a"] = "SUCCESS"
        assert isinstance(b.begin("b"), Run)
        assert [state["running"] for state in held(b)] == [["b"], ["b"]]
        del stale


class TestLeases:
    def test_one_call_a_store_renews_all(self, bench):
        short = replace(RUNNING, lease=0.3)
        b = bench(short, replace(short, store="ledger"))
        kept = [b.begin(str(number), keys=(f"a{number}", f"ledger/b{number}")) for number in range(5)]
        for store in b.stores.values():
            store.calls.clear()
        wait_until(lambda: all(store.calls.count("renew") >= 2 for store in b.stores.values()), 20)
        assert abs(b.store.calls.count("renew") - ledger(b).calls.count("renew")) <= 1
        assert len(kept) == 5

    def test_a_store_that_is_away_costs_no_lease_in_another(self, bench):
        short = replace(RUNNING, lease=0.6)
        b = bench(short, replace(short, store="ledger"))
        run = b.begin("a")
        here, there = run.leases
        ledger(b).failing = {"renew"}
        before = here.renewed_at
        wait_until(lambda: here.renewed_at > before + 2 * 0.6, 20)
        here.ensure()
        assert there.renewed_at < here.renewed_at
        assert not b.told(signals.LostLease)

    def test_a_lost_one_is_told_by_its_whole_name(self, bench):
        b = bench(Policy(lock="while_running", lease=0.3, store="ledger"))
        run = b.begin("a")
        ledger(b).withdraw(["k0"], "a", running=True)
        wait_until(lambda: b.told(signals.LostLease), 20)
        assert b.told(signals.LostLease)[0].key == "ledger/k0"
        assert run.leases[0].lost


def test_counts_are_in_the_default_store(bench):
    b = bench(FINISHED, ONCE)
    b.guard.counters.add("t", "published")
    b.guard.counters.flush()
    assert b.store.counts("stats") == {("t", "published"): 1}
    assert ledger(b).counts("stats") == {}


# A whole app


@pytest.fixture
def two(local_app):
    """``two(rules)``: an app with a store more, ``a.ledger``."""

    def make(rules: Any, **settings: Any) -> Any:
        store = MemoryStore()
        a = local_app(rules, stores={"ledger": store}, **settings)
        a.ledger = store
        return a

    return make


def states(store: MemoryStore) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"queued": [], "running": [], "done": []}
    for _, record in store.scan("*"):
        found["queued"] += [part.task_id for part in record.queued]
        found["running"] += [part.task_id for part in record.running]
        found["done"] += [record.done.task_id] if record.done else []
    return found


def test_a_task_with_locks_in_both(two):
    a = two({"t": ["until_finished", {"lock": "once", "store": "ledger"}]})
    t = a.task()
    first = t.delay(1)
    assert t.delay(1).id == first.id
    ((key, _),) = a.ledger.scan("*")
    assert key.startswith("dedupe:t:"), "the store's own keys have no name in front"
    a.run_next()
    assert (states(a.store), states(a.ledger)) == (NOTHING, {**NOTHING, "done": [first.id]})
    told = [event.keys[1] for event in a.told(signals.LockTaken)]
    assert told == [f"ledger/{key}"] * 2


def test_a_message_whose_rule_moves_to_another_store_is_run_there_and_its_claim_given_back(two):
    a = two({"t": "until_finished"})
    t = a.task(lambda task, value: seen.append((states(a.store), states(a.ledger))))
    seen: list[Any] = []
    sent = t.delay(1)
    (message,) = a.messages()
    assert states(a.store) == {**NOTHING, "queued": [sent.id]}

    stores = {"default": a.store, "ledger": a.ledger}
    with a.dedupe.reconfigured(client=None, stores=stores, rules={"t": {"lock": "once", "store": "ledger"}}):
        a.start(message)
        assert seen == [(NOTHING, {**NOTHING, "running": [sent.id]})]
        assert (states(a.store), states(a.ledger)) == (NOTHING, {**NOTHING, "done": [sent.id]})


def test_one_whose_store_the_worker_does_not_know_any_more_runs_under_its_new_lock(two):
    a = two({"t": {"lock": "until_finished", "store": "ledger"}})
    t = a.task()
    sent = t.delay(1)
    (message,) = a.messages()
    with a.dedupe.reconfigured(client=None, stores={"default": a.store}, rules={"t": "once"}):
        a.start(message)
        assert states(a.store) == {**NOTHING, "done": [sent.id]}
        assert states(a.ledger) == {**NOTHING, "queued": [sent.id]}, "it runs out"
    assert a.ran == [1]


def test_a_call_may_choose_its_store(two):
    a = two({"t": "until_finished"})
    t = a.task()
    t.apply_async((1,), dedupe={"store": "ledger"})
    assert (states(a.store)["queued"], len(states(a.ledger)["queued"])) == ([], 1)
    with pytest.raises(
        ConfigurationError, match="dedupe= of a call of t: store 'leger' is not in dedupe_stores"
    ):
        t.apply_async((2,), dedupe={"store": "leger"})


def test_a_tasks_own_policy_is_checked_too(two):
    a = two({})
    t = a.task(dedupe={"lock": "once", "store": "leger"})
    with pytest.raises(ConfigurationError, match=r"dedupe= of task t: store 'leger' .* mean 'ledger'"):
        t.delay(1)


def test_an_error_of_a_named_store_says_which(local_app):
    a = local_app({"t": "once"}, stores={"ledger": "db+sqlite://"})
    with pytest.raises(ConfigurationError, match=r"^Dedupe\(app, stores=...\)\['ledger'\]: .* names no file"):
        a.task().delay(1)


def test_the_self_check_looks_at_each(two, log):
    a = two({"t": {"lock": "once", "store": "ledger"}})
    a.task()
    checked = a.dedupe.checked()
    assert checked.place.count("this process' memory at ") == 2
    assert " and in " in checked.place
