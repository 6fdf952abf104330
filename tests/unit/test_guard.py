"""The shell between pure decisions and a store: no task is lost, and no claim outlives its task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_dedupe import Policy, signals
from celery_dedupe.core.verdicts import Duplicate, Poison, Quiet, Raise, Skip, Wait
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.guard import runs
from celery_dedupe.guard.claims import Drop
from celery_dedupe.guard.runs import Run
from tests.harness.waiting import wait_until
from tests.unit.bench import Bench, call, share
from tests.unit.conftest import NOTHING

HOUR = 3600


FINISHED, RUNNING = Policy(lock="until_finished"), Policy(lock="while_running")
ONCE, QUEUE = Policy(lock="once"), Policy(lock="queue_and_run")


# A publish


def test_a_claim_is_granted_once(bench):
    b = bench(FINISHED)
    assert b.claim("a") is True
    drop = b.claim("b")
    assert drop == Drop(FINISHED, Duplicate("a", "t", "queued", HOUR, "k0"))


def test_a_claim_names_the_first_lock_that_is_taken(bench):
    b = bench(RUNNING, Policy(lock="until_started"), FINISHED)
    b.claim("a", keys=("x", "y", "k2"))
    drop = b.claim("b")
    assert (drop.policy, drop.duplicate.key) == (FINISHED, "k2")


def test_a_publish_that_claims_nothing_asks_nothing(bench):
    b = bench(RUNNING)
    assert b.claim("a") is False
    assert b.store.calls == []


def test_a_message_that_others_wait_for_goes_out_without_a_claim(bench):
    """Case 37."""
    b = bench(FINISHED)
    b.claim("a")
    assert b.claim("b", workflow=True) is False
    assert b.store.held() == {**NOTHING, "queued": ["a"]}
    (event,) = b.told(signals.PublishDropped)
    assert (event.task_id, event.lock, event.observed) == ("b", "until_finished", True)


def test_a_message_that_others_wait_for_is_dropped_if_the_policy_says_so(bench):
    b = bench(Policy(lock="until_finished", in_workflow="drop"))
    b.claim("a")
    assert isinstance(b.claim("b", workflow=True), Drop)


def test_a_call_from_inside_is_its_runs_successor(bench):
    b = bench(FINISHED)
    b.begin("a")
    assert isinstance(b.claim("b"), Drop)
    assert b.claim("c", successor_of="a") is True


# A start


def test_a_run_gets_its_slot_and_a_fence_that_grows(bench):
    b = bench(FINISHED)
    b.claim("a")
    first = b.begin("a")
    assert (first.call.task_id, [lease.key for lease in first.leases]) == ("a", ["k0"])
    assert b.store.held() == {**NOTHING, "running": ["a"]}
    runs.finish(b.guard, first, "succeeded")
    second = b.begin("b")
    assert second.leases[0].fence > first.leases[0].fence


def test_locks_of_a_list_are_taken_together_or_not_at_all(bench):
    b, other = bench(RUNNING, RUNNING), bench(RUNNING)
    share(b, other)
    other.begin("other", keys=("k1",))
    assert isinstance(b.begin("a"), Skip)
    assert b.store.held() == {**NOTHING, "running": ["other"]}


def test_a_period_needs_no_start(bench):
    b = bench(Policy(lock="until_expired", period=HOUR))
    b.claim("a")
    b.store.calls.clear()
    run = b.begin("a")
    runs.finish(b.guard, run, "succeeded")
    assert b.store.calls == []
    assert b.store.held() == {**NOTHING, "queued": ["a"]}


def test_leases_are_renewed_by_the_heartbeat_until_the_end(bench):
    """Case 13."""
    b = bench(Policy(lock="while_running", lease=0.3))
    run = b.begin("a")
    wait_until(lambda: b.store.calls.count("renew") >= 2)
    assert b.guard.heartbeat.held() == list(run.leases)
    runs.finish(b.guard, run, "succeeded")
    assert b.guard.heartbeat.held() == []
    assert b.store.held() == NOTHING


def test_a_lease_that_another_has_by_now_is_told_as_lost(bench, log):
    """Case 15: a holder comes back after a pause, and the lock is another's."""
    b = bench(Policy(lock="while_running", lease=0.3))
    run = b.begin("a")
    b.clock.turn(1)
    wait_until(lambda: b.told(signals.LostLease))
    assert run.leases[0].lost
    assert b.told(signals.LostLease) == [signals.LostLease("t", "a", "k0", run.leases[0].fence)]
    assert "t[a] lost its lease on k0 while it runs: another run may overlap it" in log.text


@pytest.mark.parametrize(("on_lease_lost", "stops"), [("continue", 0), ("terminate", 1)])
def test_a_run_is_stopped_for_a_lost_lease_if_the_policy_says_so(bench, on_lease_lost, stops):
    b = bench(Policy(lock="while_running", lease=0.3, on_lease_lost=on_lease_lost))
    stopped: list[str] = []
    run = runs.begin(b.guard, call("a"), b.policies, b.ticket("a"), "w1", lambda: lambda: stopped.append("a"))
    b.clock.turn(1)
    wait_until(lambda: run.leases[0].lost)
    wait_until(lambda: b.told(signals.LostLease))
    assert len(stopped) == stops


def test_a_run_that_ends_after_its_lease_was_lost_is_a_warning(bench, log):
    """Case 13: and the next one's slot is left alone."""
    b = bench(RUNNING)
    run = b.begin("a")
    b.clock.turn(61)
    assert isinstance(b.begin("b"), Run)
    runs.finish(b.guard, run, "failed")
    assert b.store.held() == {**NOTHING, "running": ["b"]}
    assert "t[a] ended (failed) after it lost its lease on k0: another run may have overlapped it" in log.text


def test_a_refused_start_holds_nothing_that_could_be_finished(bench):
    """Case 12."""
    b = bench(FINISHED)
    run = b.begin("a")
    refused = b.begin("b")
    assert type(refused) is Skip
    assert not hasattr(refused, "leases")
    assert b.guard.heartbeat.held() == list(run.leases)


def test_a_copy_waits_while_the_first_runs_and_ends_quietly_after_it(bench):
    """Case 28."""
    b = bench(FINISHED)
    run = b.begin("a")
    waiting = b.begin("a")
    assert isinstance(waiting, Wait)
    assert waiting.duplicate is None
    runs.finish(b.guard, run, "succeeded")
    assert isinstance(b.begin("a"), Quiet)


def test_a_copy_runs_when_the_first_has_failed(bench):
    b = bench(FINISHED)
    run = b.begin("a")
    b.begin("a")
    runs.finish(b.guard, run, "failed")
    assert isinstance(b.begin("a"), Run)


def test_a_message_that_cuts_off_every_run_is_stopped_and_holds_nothing(bench, log):
    b = bench(Policy(lock="until_finished", max_deliveries=2), Policy(lock="until_started"))
    b.claim("a")
    for _ in range(2):
        assert isinstance(b.begin("a"), Run)
        assert isinstance(b.begin("a"), Wait), "a copy that may still run"
        b.clock.turn(61)
    stopped = b.begin("a")
    assert isinstance(stopped, Poison)
    assert stopped.error.args == ("t", "a", 3, 2)
    assert b.store.held() == NOTHING
    (event,) = (event for event in b.told(signals.RunRefused) if event.decision == "poison")
    assert event.reason == "delivered 3 times, and max_deliveries is 2"
    (line,) = (record for record in log.records if "poison" in record.getMessage())
    assert (line.levelname, line.getMessage()) == ("ERROR", f"t[a] poison: {event.reason}")
    assert isinstance(b.begin("a", nonce="a new call"), Run)


@pytest.mark.parametrize(("ending", "stops"), [("succeeded", False), ("requeued", True), ("unknown", True)])
def test_runs_that_come_to_an_end_are_not_counted(bench, ending, stops):
    b = bench(Policy(lock="while_running", max_deliveries=1))
    runs.finish(b.guard, b.begin("a"), ending)
    assert isinstance(b.begin("a"), Poison if stops else Run)


def test_in_observe_mode_a_poison_message_runs_on(bench):
    b = bench(Policy(lock="while_running", max_deliveries=1), observe=True)
    for _ in range(3):
        assert isinstance(b.begin("a"), Run)
        b.clock.turn(61)
    assert [(e.decision, e.observed) for e in b.told(signals.RunRefused)] == [("poison", True)] * 2


@pytest.mark.parametrize("policy", [FINISHED, ONCE, Policy(lock="until_started")], ids=lambda p: p.lock)
def test_a_copy_whose_first_delivery_ended_well_ends_too_and_holds_nothing(bench, policy):
    b = bench(policy)
    assert isinstance(b.begin("a", ended_well=lambda: True), Quiet)
    assert [event.decision for event in b.told(signals.RunRefused)] == ["quiet"]
    assert not b.guard.heartbeat.held()
    drop = b.claim("b")
    if policy is ONCE:
        assert (drop.duplicate.task_id, drop.duplicate.state) == ("a", "done")
    else:
        assert drop is True


def test_whether_a_copy_ended_well_is_asked_when_the_slot_is_taken(bench):
    b = bench(FINISHED)
    asked: list[list[str]] = []

    def ended_well() -> bool:
        asked.append([part.task_id for part in b.store.read("k0").running])
        return False

    assert isinstance(b.begin("a", ended_well=ended_well), Run)
    assert asked == [["a"]]
    assert isinstance(b.begin("a", ended_well=ended_well), Wait), "while it runs it has not ended"
    assert len(asked) == 1


def test_a_copy_that_meets_another_task_is_neither_skipped_nor_sent_again_once_it_ended_well(bench):
    skips, waits = bench(FINISHED), bench(QUEUE)
    for b in (skips, waits):
        b.begin("other")
        assert isinstance(b.begin("a", ended_well=lambda: True), Quiet)
        assert not b.store.read("k0").queued


def test_a_copy_that_ended_well_stays_quiet_without_a_store(bench):
    b = bench(FINISHED)
    b.store.down = True
    assert isinstance(b.begin("a", ended_well=lambda: True), Quiet)


def test_observed_a_copy_that_ended_well_runs_with_its_slot(bench):
    b = bench(FINISHED, observe=True)
    run = b.begin("a", ended_well=lambda: True)
    assert isinstance(run, Run)
    assert b.guard.heartbeat.held()
    runs.finish(b.guard, run, "succeeded")


LISTS = [
    (QUEUE, RUNNING),
    (RUNNING, QUEUE),
    (Policy(lock="until_started"), RUNNING),
    (Policy(lock="until_expired", period=HOUR), RUNNING),
    (FINISHED, Policy(lock="while_running", on_conflict="raise")),
]


def names(policies: tuple[Policy, ...]) -> str:
    return "+".join(policy.lock for policy in policies)


@pytest.mark.parametrize("policies", LISTS, ids=names)
def test_a_run_that_is_turned_away_for_good_leaves_no_claim_whichever_lock_refused(bench, policies):
    b, other = bench(*policies), bench(RUNNING)
    share(b, other)
    b.claim("a")
    other.begin("other", keys=("k0" if policies[0] is RUNNING else "k1",))
    assert isinstance(b.begin("a"), (Skip, Raise))
    assert b.store.held() == {**NOTHING, "running": ["other"]}


@pytest.mark.parametrize("first", [Policy(lock="until_started"), FINISHED])
def test_no_equal_call_is_queued_while_the_first_waits_for_another_lock(bench, first):
    b, other = bench(first, Policy(lock="while_running", on_conflict="wait")), bench(RUNNING)
    share(b, other)
    b.claim("a")
    other.begin("other", keys=("k1",))
    assert isinstance(b.begin("a"), Wait)
    assert isinstance(b.claim("b"), Drop)


# Seen, then called again


@pytest.mark.parametrize("verb", ["claim", "begin"])
def test_a_run_whose_result_is_final_is_in_nobodys_way(bench, verb):
    """Celery stores a result before the run's end reaches the record."""
    b = bench(FINISHED)
    b.begin("a")
    b.states["a"] = "SUCCESS"
    granted = getattr(b, verb)("b")
    assert granted is True or isinstance(granted, Run)
    assert b.asked == ["a"]
    assert "a" not in b.store.held()["running"]


@pytest.mark.parametrize("verb", ["claim", "begin"])
def test_a_run_without_a_result_stays_in_the_way(bench, verb):
    b = bench(FINISHED)
    b.begin("a")
    assert isinstance(getattr(b, verb)("b"), (Drop, Skip))
    assert b.store.held() == {**NOTHING, "running": ["a"]}


@pytest.mark.parametrize(("state", "refused"), [("SUCCESS", True), ("FAILURE", False)])
def test_what_once_has_done_is_done_though_its_mark_is_not_there_yet(bench, state, refused):
    b = bench(ONCE)
    b.begin("a")
    b.states["a"] = state
    assert isinstance(b.claim("b"), Drop) == refused


def test_results_are_asked_for_only_where_a_run_is_in_the_way(bench):
    b = bench(FINISHED)
    b.claim("a")
    b.claim("b")
    assert b.asked == []


def test_the_end_of_a_run_that_was_taken_for_over_is_no_error(bench):
    b = bench(FINISHED)
    run = b.begin("a")
    b.states["a"] = "SUCCESS"
    b.claim("b")
    runs.finish(b.guard, run, "succeeded")
    assert b.store.held() == {**NOTHING, "queued": ["b"]}


# Without the store


def test_without_the_store_a_publish_goes_out_and_that_is_told(bench):
    """Case 22."""
    b = bench(FINISHED)
    b.store.down = True
    assert b.claim("a") is True, "it may have been granted: whoever fails to send it has to withdraw it"
    assert b.told(signals.RanUnprotected) == [
        signals.RanUnprotected("t", "a", "publish", "the store is away")
    ]


def test_one_policy_that_refuses_is_enough(bench):
    b = bench(FINISHED, ONCE)
    b.store.down = True
    with pytest.raises(StoreUnavailable):
        b.claim("a")


def test_an_outage_costs_one_call_and_one_line(bench, log):
    b = bench(FINISHED)
    b.store.down = True
    for name in "abcde":
        b.claim(name)
        assert isinstance(b.begin(name), Run)
    assert b.store.calls == ["claim"]
    assert [record.levelname for record in log.records].count("ERROR") == 1
    assert len(b.told(signals.RanUnprotected)) == 10


def test_a_call_that_failed_costs_no_run_its_lease(bench):
    """The store is skipped for some seconds then, which is more than a short lease has."""
    b = bench(Policy(lock="while_running", lease=0.3))
    run = b.begin("a")
    b.store.failing.add("withdraw")
    b.guard.withdraw(("x",), "a")
    assert b.breaker.open
    wait_until(lambda: b.store.calls.count("renew") >= 2)
    assert not run.leases[0].lost


def test_after_an_outage_all_is_as_before(bench, log):
    b = bench(FINISHED)
    b.store.down = True
    b.claim("a")
    b.store.down = False
    b.clock.turn(6)
    assert b.claim("b") is True
    assert isinstance(b.claim("c"), Drop)
    assert "answers again" in log.text


def test_a_start_that_may_not_go_on_waits_and_then_fails(bench):
    b = bench(Policy(lock="once", wait_limit=10))
    b.store.down = True
    waiting = b.begin("a")
    assert (type(waiting), waiting.duplicate) == (Wait, None)
    ended = b.begin("a", waits=5, waited=11.0)
    assert (type(ended), type(ended.error)) == (Raise, StoreUnavailable)
    assert ended.reason == str(ended.error) == "the store is away (asked again in 5.0 s)"
    assert b.told(signals.RanUnprotected) == []


def test_a_release_that_fails_is_sent_again_and_the_outcome_is_told_all_the_same(bench):
    """Case 11."""
    b = bench(FINISHED)
    run = b.begin("a")
    b.store.failing.add("finish")
    runs.finish(b.guard, run, "succeeded")
    assert [event.outcome for event in b.told(signals.LockReleased)] == ["succeeded"]
    b.store.failing.clear()
    b.clock.turn(6)
    wait_until(lambda: b.store.held() == NOTHING)


def test_a_release_that_went_through_though_its_reply_was_lost_does_no_harm_when_it_comes_again(bench):
    b = bench(FINISHED)
    run = b.begin("a")
    b.store.mute.add("finish")
    runs.finish(b.guard, run, "succeeded")
    assert isinstance(_after_outage(b, lambda: b.begin("b")), Run)
    b.store.mute.clear()
    wait_until(lambda: not b.guard.heartbeat._releases)
    assert b.store.held() == {**NOTHING, "running": ["b"]}


def _after_outage(b: Bench, do: Callable[[], Any]) -> Any:
    b.clock.turn(6)
    return do()


def test_a_success_is_remembered_though_the_store_was_away_for_longer_than_a_lease(bench):
    b = bench(ONCE)
    run = b.begin("a")
    b.store.failing.add("finish")
    runs.finish(b.guard, run, "succeeded")
    b.clock.turn(1000)
    (release,) = b.guard.heartbeat._releases
    assert release.until - time.monotonic() > 1000
    b.store.failing.clear()
    wait_until(lambda: b.store.held() == {**NOTHING, "done": ["a"]})


def test_a_run_that_began_without_the_store_gives_its_claim_back_at_its_end(bench):
    b = bench(FINISHED)
    b.claim("a")
    b.store.down = True
    run = b.begin("a")
    assert run.leases == ()
    b.store.down = False
    b.clock.turn(6)
    runs.finish(b.guard, run, "succeeded")
    assert b.store.held() == NOTHING


# Observe


PATIENT = Policy(lock="while_running", on_conflict="wait")


@pytest.mark.parametrize(
    "policies", [*LISTS, (QUEUE,), (ONCE,), (Policy(lock="until_started"), PATIENT)], ids=names
)
def test_observe_refuses_nothing_delays_nothing_and_leaves_nothing(bench, policies):
    b, other = bench(*policies, observe=True), bench(RUNNING)
    share(b, other)
    b.claim("a")
    drop = b.claim("b")
    assert drop.observed
    assert drop.duplicate.task_id == "a"
    for number, _ in enumerate(policies):
        other.begin(f"other{number}", keys=(f"k{number}",))
    run = b.begin("a")
    assert isinstance(run, Run)
    assert {event.observed for event in b.told(signals.RunRefused)} <= {True}
    assert b.told(signals.RunRefused) or policies[0].lock == "until_started"
    runs.finish(b.guard, run, "failed")
    assert b.store.held()["queued"] == []


def test_observe_does_without_the_store_whatever_the_policy_says(bench):
    b = bench(ONCE, observe=True)
    b.store.down = True
    assert b.claim("a") is True
    assert isinstance(b.begin("a"), Run)


def observing(policy: Policy) -> Policy:
    return replace(policy, observe=True)


def test_a_lock_that_observes_keeps_a_publish_from_no_other_lock(bench):
    b = bench(observing(QUEUE), FINISHED)
    b.claim("a", keys=("same", "one"))
    drop = b.claim("b", keys=("same", "two"))
    assert drop == Drop(b.policies[0], Duplicate("a", "t", "queued", HOUR, "same"), observed=True)
    assert b.store.held() == {**NOTHING, "queued": ["a", "a", "b"]}, "it holds the lock that was free"

    drop = b.claim("c", keys=("same", "two"))
    assert (drop.policy, drop.duplicate.task_id, drop.observed) == (FINISHED, "b", False)
    told = [(event.task_id, event.lock, event.observed) for event in b.told(signals.PublishDropped)]
    assert told == [
        ("b", "queue_and_run", True),
        ("c", "queue_and_run", True),
        ("c", "until_finished", False),
    ]


def test_a_lock_that_observes_is_claimed_like_any(bench):
    b = bench(observing(QUEUE), FINISHED)
    assert b.claim("a") is True
    assert [len(event.keys) for event in b.told(signals.LockTaken)] == [2]
    assert b.store.calls == ["claim"]


def test_what_others_wait_for_would_not_be_dropped(bench):
    b = bench(observing(FINISHED))
    b.claim("a")
    assert b.claim("b", workflow=True) is False
    assert [event.observed for event in b.told(signals.PublishDropped)] == [True]


def test_a_lock_that_observes_keeps_a_run_from_no_other_lock(bench):
    b = bench(observing(RUNNING), QUEUE)
    b.begin("a", keys=("same", "one"))
    b.claim("b", keys=("same", "two"))
    run = b.begin("b", keys=("same", "two"))
    assert [lease.key for lease in run.leases] == ["two"]
    assert isinstance(run.would_be, Skip)
    assert b.store.held() == {**NOTHING, "running": ["a", "a", "b"]}

    assert isinstance(b.begin("c", keys=("same", "two")), Wait), "the other lock counts"
    told = [(event.task_id, event.decision, event.observed) for event in b.told(signals.RunRefused)]
    assert told == [("b", "skip", True), ("c", "skip", True), ("c", "wait", False)]
    runs.finish(b.guard, run, "succeeded")
    assert b.store.held() == {**NOTHING, "queued": ["c"], "running": ["a", "a"]}


@pytest.mark.parametrize(
    ("policies", "kind"),
    [((observing(QUEUE),), Run), ((observing(QUEUE), FINISHED), Quiet)],
    ids=["all", "one"],
)
def test_a_copy_that_is_over_runs_only_where_all_locks_observe(bench, policies, kind):
    b = bench(*policies)
    b.claim("a", generation=2)
    assert isinstance(b.begin("a"), kind)


def test_a_lock_that_observes_does_not_wait_for_the_store(bench):
    b = bench(observing(ONCE), FINISHED)
    b.store.down = True
    assert b.claim("a") is True
    assert isinstance(b.begin("a"), Run)


def test_a_lock_that_observes_stops_no_run(bench):
    b = bench(observing(Policy(lock="while_running", on_lease_lost="terminate")))
    run = b.begin("a")
    assert run.leases[0].interrupt is None


# What a person sees


@pytest.mark.parametrize(
    ("policy", "first", "second", "line"),
    [
        (FINISHED, "claim", "claim", "t[b] not published: duplicate; a is queued and holds k0 for 3600.0 s"),
        (RUNNING, "begin", "begin", "t[b] skip: duplicate; a is running and holds k0 for 60.0 s"),
        (
            Policy(lock="while_running", on_conflict="raise"),
            "begin",
            "begin",
            "t[b] raise: duplicate; a is running and holds k0 for 60.0 s",
        ),
    ],
)
def test_a_refusal_is_one_line_of_who_what_and_how_long(bench, log, policy, first, second, line):
    """Case 58."""
    b = bench(policy)
    getattr(b, first)("a")
    log.clear()
    getattr(b, second)("b")
    (record,) = log.records
    assert record.levelname == "INFO"
    assert record.getMessage() == f"{line} unless renewed"


def test_a_wait_is_one_line_too(bench, log):
    b = bench(QUEUE)
    b.begin("a")
    log.clear()
    verdict = b.begin("b")
    (record,) = log.records
    assert record.getMessage().startswith(f"t[b] wait {verdict.delay:.1f} s: the lock is held; a is running")


def test_a_grant_is_no_line(bench, log):
    b = bench(FINISHED)
    b.claim("a")
    runs.finish(b.guard, b.begin("a"), "succeeded")
    assert log.records == []
    assert [type(event) for event in b.events] == [
        signals.LockTaken,
        signals.LockTaken,
        signals.LockReleased,
    ]


def test_what_is_kept_for_ever_is_said_so(bench, log):
    b = bench(Policy(lock="once", keep=None))
    runs.finish(b.guard, b.begin("a"), "succeeded")
    b.claim("b")
    assert "a is done and holds k0 for ever" in log.text


# The process ends


def test_a_worker_that_shuts_down_frees_what_it_still_holds_and_nothing_else(bench):
    b, other = bench(FINISHED), bench(FINISHED)
    share(b, other)
    kept = [b.begin("a"), other.begin("b", keys=("k1",))]
    b.guard.abandon()
    assert b.store.held() == {**NOTHING, "running": ["b"]}
    assert len(kept) == 2


def test_no_thread_is_left_after_close(bench):
    b = bench(FINISHED)
    run = b.begin("a")
    assert run.leases
    b.guard.close()
    assert "celery-dedupe-heartbeat" not in {thread.name for thread in threading.enumerate()}
