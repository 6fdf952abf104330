"""Every decision, as a table: lock by situation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dedupe import Duplicate, Policy
from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import BeginAsk, ClaimAsk, FinishAsk
from celery_dedupe.core.call import Call
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.parts import Holder
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.core.verdicts import Raise, Skip, Wait

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
RUNS = ["while_running", "queue_and_run", "until_finished", "once"]
FIRST, WAITED = Ticket(("k",), "n"), Ticket(("k",), "n", waits=9, waited=3600.0)
WORKFLOW, SUCCESSOR = Ticket(("k",), workflow=True), Ticket(("k",), successor_of="holder")


def policy(lock: str, **fields: object) -> Policy:
    return Policy(lock=lock, **({"period": "10m"} if lock == "until_expired" else {}), **fields)


def call(**fields: object) -> Call:
    return Call("t", "id", (), {}, None, **fields)


@pytest.mark.parametrize(
    ("lock", "blocked_by"),
    [
        ("until_started", {"queued"}),
        ("queue_and_run", {"queued"}),
        ("until_finished", {"queued", "running"}),
        ("until_expired", {"queued"}),
        ("once", {"queued", "running", "done"}),
    ],
)
def test_what_stands_in_the_way_of_a_publish(lock, blocked_by):
    ask = verdicts.claim_ask(policy(lock), "k", call())
    assert ask == ClaimAsk("k", 10 * MINUTE if lock == "until_expired" else HOUR, frozenset(blocked_by))


def test_nothing_stands_in_the_way_of_a_publish_of_while_running():
    assert verdicts.claim_ask(policy("while_running"), "k", call()) is None


@pytest.mark.parametrize(
    ("fields", "ttl"),
    [
        ({}, HOUR),
        ({"eta_in": 7200.0}, 3 * HOUR),
        ({"eta_in": -5.0}, HOUR),
        ({"expires_in": 30.0}, 30 * SECOND),
        ({"expires_in": 9999.0}, HOUR),
        ({"eta_in": 7200.0, "expires_in": 8000.0}, 8000 * SECOND),
        ({"expires_in": 0.0}, SECOND),
        ({"expires_in": -30.0}, SECOND),
    ],
)
def test_a_claim_lives_as_long_as_its_message_may_wait(fields, ttl):
    """Case 4: the time to the eta is added, the expiry is the cap."""
    assert verdicts.claim_ask(policy("until_finished"), "k", call(**fields)).ttl == ttl


@pytest.mark.parametrize("fields", [{}, {"eta_in": 7200.0}, {"expires_in": 1.0}])
def test_a_period_is_a_period_whatever_the_message_says(fields):
    assert verdicts.claim_ask(policy("until_expired"), "k", call(**fields)).ttl == 10 * MINUTE


def test_a_retry_claims_at_its_publish_only_what_its_runs_end_cannot_hand_over():
    asked = {lock: verdicts.retry_ask(policy(lock), "k", call(eta_in=30.0)) for lock in LOCKS}
    assert {lock for lock, ask in asked.items() if ask} == {"until_started"}
    assert asked["until_started"] == ClaimAsk("k", HOUR + 30 * SECOND, frozenset())


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("lock", LOCKS)
def test_what_a_start_asks_for(lock, comes_back):
    rule = policy(lock) if lock in ("until_started", "until_expired") else policy(lock, lease="30s")
    ask = verdicts.begin_ask(rule, "k", 2.0, comes_back=comes_back)
    hold = HOUR + 2 * SECOND if comes_back and rule.traits.claims else 0
    if lock == "until_expired":
        assert ask is None
    elif lock == "until_started":
        assert ask == BeginAsk("k", slot=False, hold=hold)
    else:
        mark = HOUR + 2 * SECOND
        slot = BeginAsk("k", True, lease=30 * SECOND, hold=hold, mark=mark)
        # For as long as Celery keeps a result, which tells how the run of a dead process ended.
        assert ask == (replace(slot, remembers=True, trace=DAY) if lock == "once" else slot)


def test_a_start_asks_for_one_of_as_many_slots_as_the_policy_says():
    assert verdicts.begin_ask(policy("while_running", limit=4), "k", 0, comes_back=False).limit == 4


def test_a_start_counts_its_messages_deliveries_for_longer_than_a_broker_waits():
    ask = verdicts.begin_ask(policy("while_running", max_deliveries=3), "k", 0, comes_back=False)
    assert (ask.deliveries, ask.counted) == (3, 7 * DAY)


# A start that finds somebody in its way


def conflict(rule: Policy, ticket: Ticket, *states: str, task_id: str = "holder") -> object:
    holders = [Holder(state, task_id, 5000) for state in states or ("running",)]
    return verdicts.on_conflict(rule, "k", "t", holders, ticket, 2.0)


FOUND = Duplicate("holder", "t", "running", 5.0, "k")


@pytest.mark.parametrize(
    ("rule", "ticket", "verdict"),
    [
        (policy("while_running"), FIRST, Skip),
        (policy("until_finished"), FIRST, Skip),
        (policy("once"), FIRST, Skip),
        (policy("queue_and_run"), FIRST, Wait),
        (policy("queue_and_run"), WAITED, Skip),
        (policy("queue_and_run", wait_limit="2h"), WAITED, Wait),
        (policy("while_running", on_conflict="wait"), FIRST, Wait),
        (policy("while_running", on_conflict="raise"), FIRST, Raise),
        (policy("while_running", on_conflict="raise"), WORKFLOW, Raise),
        (policy("while_running"), WORKFLOW, Wait),
        (policy("while_running"), replace(WORKFLOW, waited=3600.0), Skip),
        (policy("while_running", in_workflow="drop"), WORKFLOW, Skip),
        (policy("while_running", on_conflict="raise"), SUCCESSOR, Wait),
        (policy("while_running"), replace(SUCCESSOR, waited=1e6), Wait),
    ],
)
def test_what_becomes_of_a_start_that_finds_another_running(rule, ticket, verdict):
    found = conflict(rule, ticket)
    assert type(found) is verdict
    assert found.duplicate == FOUND


@pytest.mark.parametrize("ticket", [FIRST, WORKFLOW, SUCCESSOR])
@pytest.mark.parametrize(("on_conflict", "verdict"), [("skip", Skip), ("wait", Skip), ("raise", Raise)])
def test_what_is_done_cannot_be_waited_for(ticket, on_conflict, verdict):
    assert type(conflict(policy("once", on_conflict=on_conflict), ticket, "done")) is verdict


def test_a_successor_waits_for_its_predecessor_only():
    assert type(conflict(policy("while_running"), SUCCESSOR, task_id="another")) is Skip


def test_a_successor_waits_while_its_predecessor_is_one_of_several_runs():
    holders = [Holder("running", name, 5000) for name in ("another", "holder")]
    found = verdicts.on_conflict(policy("while_running", limit=2), "k", "t", holders, SUCCESSOR, 2.0)
    assert type(found) is Wait


@pytest.mark.parametrize(
    "rule", [policy(lock, on_conflict=how) for lock in RUNS for how in ("skip", "wait", "raise")]
)
@pytest.mark.parametrize("ticket", [FIRST, WAITED, WORKFLOW, SUCCESSOR, replace(WORKFLOW, waited=9999.0)])
@pytest.mark.parametrize("state", ["running", "done"])
def test_whoever_waits_was_expected_to(rule, ticket, state):
    """``may_wait`` decides beforehand whether the refusal keeps the queued claim."""
    if type(conflict(rule, ticket, state)) is Wait:
        assert verdicts.may_wait(rule, ticket)


def test_a_holder_is_told_in_seconds_and_for_ever_as_none():
    assert verdicts.duplicate(Holder("running", "holder", 5000), "t", "k") == FOUND
    assert verdicts.duplicate(Holder("done", "holder", None), "t", "k").expires_in is None


# Waiting


@given(st.integers(0, 10**6), st.floats(0, 1), st.sampled_from(["", "a predecessor"]), st.integers(0, 3))
def test_a_delay_has_bounds(waits, roll, successor_of, generation):
    delay = verdicts.wait_delay(Ticket(waits=waits, successor_of=successor_of, generation=generation), roll)
    assert 0.03 < delay <= 30 * 1.25


@given(st.integers(0, 100), st.floats(0, 1))
def test_a_delay_doubles_until_it_is_long_enough(waits, roll):
    now, later = (verdicts.wait_delay(Ticket(waits=n), roll) for n in (waits, waits + 1))
    assert later == pytest.approx(now * 2) or later == pytest.approx(30 * (0.75 + roll / 2))
    assert later >= now


def test_delays_are_spread():
    assert verdicts.wait_delay(FIRST, 0) == pytest.approx(0.375)
    assert verdicts.wait_delay(FIRST, 1) == pytest.approx(0.625)


TICKETS = st.builds(
    Ticket,
    keys=st.lists(st.text(), max_size=3).map(tuple),
    nonce=st.text(max_size=8),
    override=st.none() | st.just(False) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    successor_of=st.text(max_size=8),
    generation=st.integers(0, 9),
    workflow=st.booleans(),
    waits=st.integers(0, 1000),
    waited=st.floats(0, 1e6),
)


@given(TICKETS, st.floats(0.001, 40))
def test_a_wait_changes_nothing_of_a_ticket_but_its_counts_and_those_upwards(ticket, delay):
    later = verdicts.wait(ticket, delay, "why").ticket
    assert replace(later, waits=ticket.waits, waited=ticket.waited) == ticket
    assert later.waits == ticket.waits + 1
    assert later.waited == pytest.approx(ticket.waited + delay, abs=0.001)


# The end of a run

KEPT = {"retried": HOUR + 5 * SECOND, "requeued": HOUR, "unknown": MINUTE}
ENDINGS = ["succeeded", "failed", "ignored", "retried", "requeued", "unknown"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("lock", ["queue_and_run", "until_finished", "once"])
def test_what_the_end_of_a_run_leaves_of_a_lock_with_a_slot_and_a_claim(lock, ending):
    """Case 25: a retry keeps its claim, for its countdown and as long as a message may wait."""
    ask = verdicts.finish_ask(policy(lock), "k", "token", ending, 5.0)
    if ending in KEPT:
        assert ask == FinishAsk("k", "token", "queued", KEPT[ending])
    elif lock == "once" and ending == "succeeded":
        assert ask == FinishAsk("k", "token", "done", 7 * DAY)
    else:
        assert ask == FinishAsk("k", "token", "free")


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_run_frees_a_lock_that_claims_nothing(ending):
    """But for its retry's count, by which a late copy of this attempt is known."""
    retried = FinishAsk("k", "token", "queued", HOUR + 5_000)
    ask = verdicts.finish_ask(policy("while_running"), "k", "token", ending, 5.0)
    assert ask == (retried if ending == "retried" else FinishAsk("k", "token", "free"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("lock", RUNS)
def test_the_end_of_a_run_keeps_the_count_of_a_message_that_may_come_again(lock, ending):
    ask = verdicts.finish_ask(policy(lock, max_deliveries=3), "k", "token", ending, 5.0)
    assert ask.deliveries == ("keep" if ending in ("requeued", "unknown") else "forget")
    assert replace(ask, deliveries="forget") == verdicts.finish_ask(policy(lock), "k", "token", ending, 5.0)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_run_says_nothing_of_a_lock_that_ended_at_its_start(ending):
    ask = verdicts.finish_ask(policy("until_started"), "k", "", ending, 5.0)
    assert ask == (FinishAsk("k", "", "queued", HOUR) if ending == "requeued" else None)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_period_ends_before_its_time_by_a_failure_only(ending):
    ask = verdicts.finish_ask(policy("until_expired"), "k", "", ending, 5.0)
    assert ask == (FinishAsk("k", "", "withdrawn") if ending == "failed" else None)


@pytest.mark.parametrize("ending", ["failed", "ignored"])
def test_a_run_that_never_got_its_slot_gives_back_the_claim_it_could_not_end(ending):
    """The store was away at its start."""
    ask = verdicts.finish_ask(policy("until_finished"), "k", "", ending, 0.0)
    assert ask == FinishAsk("k", "", "withdrawn")


@pytest.mark.parametrize(
    ("keep", "ttl"), [("1h", HOUR), (timedelta(days=30), 30 * DAY), (90, 90 * SECOND), (None, 0)]
)
def test_once_is_remembered_for_as_long_as_the_policy_says(keep, ttl):
    assert verdicts.finish_ask(policy("once", keep=keep), "k", "token", "succeeded", 0.0).ttl == ttl


def test_a_retry_that_is_due_already_keeps_its_claim_no_shorter():
    assert verdicts.finish_ask(policy("once"), "k", "token", "retried", -9.0).ttl == HOUR


def test_no_duration_is_rounded_to_for_ever():
    """A ttl of 0 would be one without an end."""
    brief = policy("once", keep=0.001, queue_ttl=0.001, lease=0.001)
    assert verdicts.finish_ask(brief, "k", "token", "succeeded", 0.0).ttl == 1
    assert verdicts.begin_ask(brief, "k", 0.0, comes_back=True).lease == 1
    assert verdicts.claim_ask(brief, "k", call()).ttl == 1
