"""The run gate: no run where one too many, none lost, and each end frees what its run held and no more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Task, chain, chord, group
from celery import signals as celery_signals
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from celery_dedupe import DuplicateTask, StoreUnavailable, current_lease, duplicate_of
from celery_dedupe.core.ticket import HEADER, from_headers
from celery_dedupe.signals import LockReleased, LockTaken, RanUnprotected, RunRefused
from tests.contract.asks import free
from tests.harness.waiting import wait_until
from tests.unit.conftest import NOTHING

HOUR = 3600.0


def returns(task: Any, value: Any) -> Any:
    return value


def fails(task: Any, value: Any) -> Any:
    raise ValueError("no")


def ignores(task: Any, value: Any) -> Any:
    raise Ignore


def rejects(task: Any, value: Any) -> Any:
    raise Reject("no")


def requeues(task: Any, value: Any) -> Any:
    raise Reject("no", requeue=True)


def retries(task: Any, value: Any) -> Any:
    raise task.retry(countdown=30)


def raises_retry_by_hand(task: Any, value: Any) -> Any:
    raise Retry


def exits(task: Any, value: Any) -> Any:
    raise SystemExit


FREED, QUEUED, DONE = NOTHING, {**NOTHING, "queued": ["id"]}, {**NOTHING, "done": ["id"]}
ENDS = [
    ("while_running", returns, FREED),
    ("while_running", fails, FREED),
    ("while_running", retries, QUEUED),  # blocks nobody; it keeps the count by which a late copy is known
    ("until_started", returns, FREED),
    ("until_started", retries, QUEUED),
    ("queue_and_run", returns, FREED),
    ("queue_and_run", retries, QUEUED),
    ("until_finished", returns, FREED),
    ("until_finished", fails, FREED),
    ("until_finished", ignores, FREED),
    ("until_finished", rejects, FREED),
    ("until_finished", requeues, QUEUED),
    ("until_finished", retries, QUEUED),
    ("until_finished", raises_retry_by_hand, FREED),
    ("until_finished", exits, QUEUED),
    ("once", returns, DONE),
    ("once", fails, FREED),
    ("once", ignores, FREED),
    ("once", retries, QUEUED),
    ({"lock": "until_expired", "period": "1h"}, returns, QUEUED),
    ({"lock": "until_expired", "period": "1h"}, retries, QUEUED),
    ({"lock": "until_expired", "period": "1h"}, fails, FREED),
]


@pytest.mark.parametrize(("rule", "body", "left"), ENDS)
def test_what_each_end_leaves_of_a_lock(local_app, rule, body, left):
    """Cases 23 and 25."""
    a = local_app({"t": rule})
    a.task(body).apply_async((1,), task_id="id")
    (message,) = a.messages()
    if body is exits:
        with pytest.raises(SystemExit):
            a.start(message)
    else:
        a.start(message)
    assert a.ran == [1]
    assert a.store.held() == left
    assert a.dedupe.guard.heartbeat.held() == []


def test_a_failed_attempt_keeps_its_claim_for_its_countdown_and_a_while(local_app):
    """Case 25."""
    a = local_app({"t": "until_finished"})
    t = a.task(retries)
    t.delay(1)
    a.run_next()
    assert duplicate_of(t.delay(1)).expires_in == pytest.approx(HOUR + 30, abs=2)


def test_three_attempts_run_and_leave_nothing(local_app):
    """Case 23: no retry is ever refused as a duplicate of itself."""
    a = local_app({"t": "until_finished"})
    t = a.task(
        lambda task, value: task.retry(countdown=0, max_retries=2) if task.request.retries < 2 else "ok"
    )
    result = t.delay(1)
    for _ in range(3):
        a.run_next()
    assert a.ran == [1, 1, 1]
    assert result.get(timeout=5) == "ok"
    assert a.store.held() == NOTHING
    assert a.told(RunRefused) == []


# While it runs


def test_a_running_task_has_a_lease_and_nobody_else_has(local_app):
    a = local_app({"t": "until_finished"})
    seen: list[Any] = []
    t = a.task(lambda task, value: seen.append((current_lease(), current_lease().expires_in, a.store.held())))
    t.apply_async((1,), task_id="id")
    a.run_next()
    ((lease, left, held),) = seen
    assert held == {**NOTHING, "running": ["id"]}
    assert (lease.task, lease.task_id, lease.fence > 0) == ("t", "id", True)
    assert 55 < left <= 60
    assert current_lease() is None


@pytest.mark.parametrize("rule", [None, "until_started"])
def test_a_task_without_a_running_lock_has_no_lease(local_app, rule):
    a = local_app({"t": rule})
    seen: list[Any] = []
    a.task(lambda task, value: seen.append(current_lease())).delay(1)
    a.run_next()
    assert seen == [None]


@pytest.mark.parametrize(
    ("lock", "again"),
    [("until_started", True), ("while_running", True), ("queue_and_run", True), ("until_finished", False)],
)
def test_what_a_publish_meets_while_the_task_runs(local_app, lock, again):
    """Case 59: queue_and_run never loses a change made during a run."""
    a = local_app({"t": lock})
    met: list[Any] = []

    def publish() -> None:
        met.append(duplicate_of(t.delay(1)))

    # In a thread of its own, for a publish from within the run is another matter.
    t = a.task(lambda task, value: _in_thread(publish))
    t.delay(1)
    a.run_next()
    assert [found is None for found in met] == [again]
    assert a.waiting() == int(again)


def test_a_lost_lease_at_the_end_is_a_warning_and_no_more(local_app, log):
    """Case 13: it outlived its lease, and another run has the lock by now."""
    a = local_app({"t": "while_running"})
    t = a.task(lambda task, value: _outlive(a, task))
    result = t.delay(1)
    a.run_next()
    assert result.get(timeout=5) == "first"
    assert a.store.held() == {**NOTHING, "running": ["other"]}
    assert "ended (succeeded) after it lost its lease" in log.text


# Refused


def hold(a: Any, t: Any, task_id: str = "holder") -> None:
    """Another worker runs the task, and goes on running it."""
    t.apply_async((1,), task_id=task_id, dedupe=None)
    message = a.messages()[-1]
    ticket = from_headers(message.headers)
    asks = [
        ask
        for policy, key in zip(a.dedupe.policies("t"), ticket.keys, strict=True)
        if (ask := _begin_ask(policy, key))
    ]
    a.store.begin(asks, _attempt(task_id, ticket.nonce))


def _begin_ask(policy: Any, key: str) -> Any:
    from celery_dedupe.core.verdicts import begin_ask

    return begin_ask(policy, key, 0.0, comes_back=False)


def _attempt(task_id: str, nonce: str) -> Any:
    from celery_dedupe.core.asks import Attempt

    return Attempt(task_id, f"token of {task_id}", nonce, started=2**50)


def foreign(a: Any, t: Any, task_id: str = "foreign") -> Any:
    """The message of a program that does not have the extension."""
    with a.app.producer_or_acquire() as producer:
        message = a.app.amqp.create_task_message(task_id, "t", (1,), {})
        a.app.amqp.send_task_message(producer, "t", message)
    return a.messages()[-1]


def test_a_skipped_run_ends_revoked_and_its_body_is_not_run(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    a.start(foreign(a, t))
    assert a.ran == []
    result = a.app.AsyncResult("foreign")
    assert result.state == "REVOKED"
    assert "duplicate of holder" in str(result.result)
    (event,) = a.told(RunRefused)
    assert (event.task_id, event.decision, event.duplicate.task_id) == ("foreign", "skip", "holder")


def test_a_refused_run_releases_nothing_and_a_third_copy_is_refused_too(local_app):
    """Case 12."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    for name in ("second", "third"):
        a.start(foreign(a, t, name))
        assert a.store.held() == {**NOTHING, "running": ["holder"]}
    assert a.ran == []
    assert a.told(LockReleased) == []


@pytest.mark.parametrize("autoretry", [{}, {"autoretry_for": (Exception,), "max_retries": 3}])
def test_on_conflict_raise_ends_in_failure_and_is_not_retried(local_app, autoretry):
    """Case 24."""
    a = local_app({"t": {"lock": "while_running", "on_conflict": "raise"}})
    t = a.task(**autoretry)
    hold(a, t)
    a.start(foreign(a, t))
    assert a.ran == []
    assert a.waiting() == 0
    with pytest.raises(DuplicateTask) as caught:
        a.app.AsyncResult("foreign").get(timeout=5)
    assert (caught.value.task_id, caught.value.state) == ("holder", "running")


ALIKE = ("id", "task", "retries", "root_id", "parent_id", "group", "expires", "timelimit", "ignore_result")


@pytest.mark.parametrize(
    "send",
    [
        lambda t, end: t.apply_async((1,)),
        lambda t, end: chain(t.s(1), end.s()).apply_async(),
        lambda t, end: chord([t.s(1)], end.s()).apply_async(),
        lambda t, end: t.apply_async((1,), link=end.s(), link_error=end.si()),
        lambda t, end: t.apply_async((1,), {}, retries=2, expires=9000, time_limit=60, soft_time_limit=50),
        lambda t, end: t.apply_async((1,), headers={"x": "y"}, priority=3, ignore_result=True, shadow="s"),
    ],
    ids=["plain", "chain", "chord", "callbacks", "limits", "headers"],
)
def test_a_run_that_waits_is_sent_again_as_it_was(local_app, send):
    a = local_app({"t": "queue_and_run"})
    t, end = a.task(), a.task(name="end")
    hold(a, t)
    send(t, end)
    (before,) = a.messages()
    a.start(before)
    assert a.ran == []
    (again,) = a.messages()
    for name in (*ALIKE, *(["x"] if "x" in before.headers else [])):
        assert again.headers[name] == before.headers[name], name
    assert again.payload == before.payload
    assert again.properties["priority"] == before.properties["priority"]
    assert again.headers["eta"] is not None
    sent, came = from_headers(before.headers), from_headers(again.headers)
    assert (came.keys, came.nonce, came.workflow, came.waits) == (sent.keys, sent.nonce, sent.workflow, 1)
    assert a.app.AsyncResult(before.headers["id"]).state == "PENDING"
    (event,) = a.told(RunRefused)
    assert (event.decision, 0.3 < event.delay < 0.7) == ("wait", True)


def test_a_run_that_waited_runs_when_the_lock_is_free(local_app):
    a = local_app({"t": "queue_and_run"})
    t = a.task()
    hold(a, t)
    result = t.delay(1)
    a.run_next()
    assert duplicate_of(t.delay(1)).task_id == result.id, "it is in the queue all the while"
    free(a.store, [key for key, _ in a.store.scan("*")])
    a.run_next()
    assert result.get(timeout=5) == 1
    assert a.store.held() == NOTHING


def test_a_run_that_has_waited_long_enough_is_skipped_and_leaves_no_claim(local_app):
    a = local_app({"t": {"wait_limit": "1s", "lease": "1h"}})
    t = a.task()
    hold(a, t)
    result = t.delay(1)
    starts = 0
    while a.waiting():
        starts += 1
        a.run_next()
    assert starts == 3, "0.5 s and 1 s, give or take a quarter of each, then the end"
    assert result.state == "REVOKED"
    assert a.store.held() == {**NOTHING, "running": ["holder"]}


def test_a_run_that_cannot_be_sent_again_ends_in_failure_and_leaves_no_claim(local_app, monkeypatch):
    """Its message may be acknowledged already."""
    a = local_app({"t": "queue_and_run"})
    t = a.task()
    hold(a, t)
    result = t.delay(1)
    (message,) = a.messages()

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("broker away")

    monkeypatch.setattr("kombu.Producer.publish", refuse)
    a.start(message)
    assert result.state == "FAILURE"
    assert "broker away" in str(result.result)
    assert a.store.held() == {**NOTHING, "running": ["holder"]}


def test_what_waits_for_a_message_is_run_even_after_a_conflict(local_app):
    """Case 38: equal members of a group, on a lock that would skip."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    group([t.s(1), t.s(1)]).apply_async()
    for message in a.messages():
        a.start(message)
    assert a.waiting() == 2
    assert {event.decision for event in a.told(RunRefused)} == {"wait"}


def test_limit_lets_so_many_run(local_app):
    a = local_app({"t": {"lock": "while_running", "limit": 2}})
    t = a.task()
    hold(a, t)
    a.start(foreign(a, t, "second"))
    assert a.ran == [1]
    hold(a, t, "another")
    a.start(foreign(a, t, "third"))
    assert a.ran == [1]


def test_once_is_refused_when_it_is_done(local_app):
    a = local_app({"t": "once"})
    t = a.task()
    t.apply_async((1,), task_id="first")
    a.run_next()
    assert duplicate_of(t.delay(1)).state == "done"
    a.start(foreign(a, t))
    assert a.ran == [1]
    assert a.app.AsyncResult("foreign").state == "REVOKED"


# What the message says, and what the worker makes of it


def test_the_key_is_made_once_and_travels(local_app):
    made: list[Any] = []

    def key(value: Any) -> Any:
        made.append(value)
        return value

    a = local_app({"t": {"lock": "until_finished", "key": key}})
    a.task().delay(1)
    a.run_next()
    assert made == [1]
    assert a.store.held() == NOTHING


def test_a_message_without_a_ticket_contends_and_runs(local_app):
    """Case 34."""
    a = local_app({"t": "until_finished"})
    t = a.task(lambda task, value: a.store.held())
    a.start(foreign(a, t))
    assert a.app.AsyncResult("foreign").get(timeout=5) == {**NOTHING, "running": ["foreign"]}
    assert a.store.held() == NOTHING


def test_a_claim_that_ran_out_does_not_stop_its_task(local_app):
    """Case 32."""
    a = local_app({"t": "until_finished"})
    result = a.task().delay(1)
    a.clock.turn(2 * HOUR)
    assert a.store.held() == NOTHING
    a.run_next()
    assert result.get(timeout=5) == 1


@pytest.mark.parametrize("header", [{"v": 99}, {"v": 1, "k": 3}, "text", None])
def test_a_header_of_somebody_else_does_not_stop_the_task(local_app, header):
    a = local_app({"t": "until_finished"})
    t = a.task()
    message = foreign(a, t)
    message.headers[HEADER] = header
    a.start(message)
    assert a.ran == [1]
    assert a.told(RanUnprotected) == []
    assert [event.stage for event in a.told(LockTaken)] == ["running"]


@pytest.mark.parametrize("rule", [None, ["until_started", "while_running"]])
def test_a_worker_with_other_rules_gives_the_publishers_claim_back(local_app, rule):
    a = local_app({"t": "until_finished"})
    b = local_app({"t": rule}, client=a.store)
    a.task().delay(1)
    b.task()
    b.start(a.messages()[0])
    assert b.ran == [1]
    assert a.store.held() == NOTHING


def test_a_call_that_opted_out_is_left_alone_at_its_start(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    t.apply_async((1,), dedupe=False)
    a.store.calls.clear()
    a.run_next()
    assert a.ran == [1]
    assert a.store.calls == []


def test_a_calls_own_terms_hold_at_its_start(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    t.apply_async((1,), dedupe={"lock": "while_running", "on_conflict": "raise"})
    request = a.run_next()
    assert a.app.AsyncResult(request.id).state == "FAILURE"


def test_a_task_without_a_rule_asks_nothing(local_app):
    a = local_app({})
    a.task().delay(1)
    a.run_next()
    assert a.ran == [1]
    assert a.dedupe._guard is None


def test_a_start_and_an_end_cost_one_call_of_the_store_each(local_app):
    a = local_app({"t": ["until_finished", {"lock": "while_running", "key": []}, {"key": ["value"]}]})
    a.task().delay(1)
    a.store.calls.clear()
    a.run_next()
    assert a.store.calls == ["begin", "finish"]


# A message delivered twice


def test_a_copy_waits_while_the_first_runs_and_ends_quietly_after_it(local_app):
    """Case 28."""
    a = local_app({"t": "until_finished"})
    copies: list[Any] = []

    def body(task: Any, value: Any) -> str:
        # Its message comes again while it runs.
        if not copies:
            copies.append(message)
            _in_thread(lambda: a.start(message, redelivered=True))
        return "first"

    result = a.task(body).delay(1)
    (message,) = a.messages()
    a.start(message)
    assert a.ran == [1]
    (again,) = a.messages()
    a.start(again)
    assert a.ran == [1]
    assert result.get(timeout=5) == "first"
    assert a.waiting() == 0
    assert [event.decision for event in a.told(RunRefused)] == ["wait", "quiet"]
    assert a.store.held() == NOTHING


def test_a_copy_takes_over_when_the_lease_of_the_first_has_died(local_app):
    """Case 26."""
    a = local_app({"t": {"lock": "until_finished", "lease": "60s"}})
    fences: list[int] = []
    t = a.task(lambda task, value: fences.append(current_lease().fence))
    hold(a, t, "id")
    (_, record) = next(iter(a.store.scan("*")))
    t.apply_async((1,), task_id="id")
    (message,) = a.messages()
    a.start(message, redelivered=True)
    assert fences == [], "the first copy may be alive"
    (again,) = a.messages()
    a.clock.turn(61)
    a.start(again)
    assert fences[0] > record.running[0].fence


def test_a_copy_of_a_task_that_has_succeeded_ends_quietly(local_app):
    a = local_app({"t": "until_finished"})
    result = a.task().delay(1)
    (message,) = a.messages()
    a.start(message)
    a.start(message, redelivered=True)
    assert a.ran == [1]
    assert result.get(timeout=5) == 1
    assert [event.decision for event in a.told(RunRefused)] == ["quiet"]


def test_a_late_copy_of_an_earlier_attempt_ends_quietly(local_app):
    """Case 30."""
    a = local_app({"t": "until_finished"})
    a.task(retries).delay(1)
    (message,) = a.messages()
    a.start(message)
    a.start(message, redelivered=True)
    assert a.ran == [1]
    assert a.waiting() == 1, "the retry"
    assert len(a.store.held()["queued"]) == 1


# Called from inside


@pytest.mark.parametrize("lock", ["until_finished", "queue_and_run"])
def test_a_task_that_schedules_its_own_next_run_is_followed_by_it(local_app, lock):
    a = local_app({"t": lock})
    published: list[Any] = []

    def body(task: Any, value: Any) -> None:
        if not published:
            published.append(duplicate_of(task.delay(1)))
            published.append(duplicate_of(task.delay(1)))
            (message,) = a.messages()
            _in_thread(lambda: a.start(message))

    a.task(body).delay(1)
    a.run_next()
    assert published[0] is None
    assert published[1] is not None, "one successor is enough"
    assert a.ran == [1], "it does not start beside its predecessor"
    a.run_next()
    assert a.ran == [1, 1]
    assert a.store.held() == NOTHING


def test_the_next_link_of_a_chain_is_no_duplicate_of_the_one_before(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    result = chain(t.si(1), t.si(1)).apply_async()
    a.run_next()
    a.run_next()
    assert a.ran == [1, 1]
    assert result.get(timeout=5) == 1
    assert a.store.held() == NOTHING


def test_a_task_that_replaces_itself_after_a_retry_is_not_taken_for_a_late_copy(local_app):
    a = local_app({"t": "until_finished"})

    def body(task: Any, value: Any) -> str:
        if task.request.replaced_task_nesting:
            return "replaced"
        if not task.request.retries:
            raise task.retry(countdown=0)
        try:
            raise task.replace(task.si(1))
        finally:
            # It starts before its predecessor has told its end.
            (message,) = a.messages()
            _in_thread(lambda: a.start(message))

    result = a.task(body).delay(1)
    a.run_next()
    a.run_next()
    assert a.ran == [1, 1]
    a.run_next()
    assert a.ran == [1, 1, 1]
    assert result.get(timeout=5) == "replaced"
    assert a.store.held() == NOTHING


def test_a_result_that_was_seen_may_be_followed_by_a_new_call(local_app):
    """Celery stores the result before it says that the run has ended."""
    a = local_app({"t": "until_finished"})
    again: list[Any] = []

    def on_success(sender: Any, **_: Any) -> None:
        if not again:
            assert result.get(timeout=5) == 1
            assert len(a.store.held()["running"]) == 1
            _in_thread(lambda: again.append(t.delay(1)))

    celery_signals.task_success.connect(on_success)
    try:
        t = a.task()
        result = t.delay(1)
        a.run_next()
    finally:
        celery_signals.task_success.disconnect(on_success)
    assert duplicate_of(again[0]) is None
    a.run_next()
    assert a.ran == [1, 1]
    assert a.store.held() == NOTHING


# The seam


def test_a_tasks_own_before_start_is_called_when_it_may_run_and_only_then(local_app):
    a = local_app({"t": "while_running"})
    called: list[str] = []

    class Base(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            called.append(task_id)

    t = a.task(base=Base)
    t.apply_async((1,), task_id="runs")
    a.run_next()
    hold(a, t)
    a.start(foreign(a, t))
    assert called == ["runs"]


def test_a_before_start_of_the_tasks_own_that_ends_it_frees_its_lock(local_app):
    a = local_app({"t": "while_running"})

    class Base(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            raise Ignore

    a.task(base=Base).delay(1)
    a.run_next()
    assert a.ran == []
    assert a.store.held() == NOTHING


def test_an_error_of_our_own_never_stops_a_body(local_app, monkeypatch, log):
    a = local_app({"t": "until_finished"})
    a.task().apply_async((1,), task_id="id")

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr("celery_dedupe.guard.runs.begin", broken)
    a.run_next()
    assert a.ran == [1]
    assert a.told(RanUnprotected) == [RanUnprotected("t", "id", "start", "ZeroDivisionError: our own")]
    assert "t[id] runs without its locks" in log.text
    assert a.store.held() == NOTHING, "nor does its claim outlive it"


def test_a_task_that_calls_itself_can_still_retry(local_app):
    """Celery 5.7 copies what a request holds, and takes what it does not know for headers of the message."""
    a = local_app({"t": "while_running"})
    copied: list[bool] = []

    def body(task: Any, value: Any) -> None:
        if value == 1:
            task(2)
        else:
            copied.append(not task.request.called_directly)
            raise task.retry(countdown=0)

    t = a.task(body)
    request = a.start(foreign(a, t))
    if not copied[0]:
        pytest.skip("this Celery lets no task retry that calls itself")
    assert a.app.AsyncResult(request.id).state == "RETRY"
    (message,) = a.messages()
    assert set(message.headers) & {HEADER, "dedupe_verdict"} == {HEADER}


# Without a worker


def test_a_direct_call_takes_no_lock_and_frees_none(local_app):
    """Case 9."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    hold(a, t)
    a.store.calls.clear()
    assert t(1) == 1
    assert t.run(1) == 1
    assert a.store.calls == []
    assert a.store.held()["running"] == ["holder"]


def test_eager_calls_take_no_locks(local_app):
    a = local_app({"t": "until_finished"}, conf={"task_always_eager": True})
    t = a.task(
        lambda task, value: t.delay(value + 1).get(disable_sync_subtasks=False) if value < 3 else value
    )
    assert t.delay(1).get(timeout=5) == 3
    assert t.apply((3,)).get(timeout=5) == 3
    assert a.store.calls == []


def test_eager_calls_with_dedupe_eager_keep_an_equal_call_out(local_app):
    a = local_app({"t": "until_finished"}, conf={"task_always_eager": True}, eager=True)
    inner: list[Any] = []
    t = a.task(lambda task, value: inner.append(t.delay(1)))
    outer = t.delay(1)
    assert outer.state == "SUCCESS"
    assert [result.state for result in inner] == ["IGNORED"]
    assert a.ran == [1]
    assert a.store.held() == NOTHING
    assert a.waiting() == 0


def test_an_eager_retry_runs(local_app):
    a = local_app({"t": "until_finished"}, conf={"task_always_eager": True}, eager=True)
    t = a.task(lambda task, value: task.retry(countdown=0) if task.request.retries < 2 else "ok")
    assert t.delay(1).get(timeout=5) == "ok"
    assert a.ran == [1, 1, 1]
    assert a.store.held() == NOTHING


# Without the store


def test_without_the_store_a_task_runs_unprotected_and_that_is_told(local_app):
    a = local_app({"t": "until_finished"})
    result = a.task().delay(1)
    a.store.down = True
    a.run_next()
    assert result.get(timeout=5) == 1
    assert [(event.stage, event.reason) for event in a.told(RanUnprotected)] == [
        ("start", "the store is away")
    ]


def test_without_the_store_refuse_waits_and_in_the_end_fails_visibly(local_app):
    """It may never run without its lock, and must not vanish either."""
    a = local_app({"t": {"lock": "once", "wait_limit": "1s"}})
    result = a.task().delay(1)
    a.store.down = True
    while a.waiting():
        a.run_next()
    assert a.ran == []
    assert [event.decision for event in a.told(RunRefused)] == ["wait", "wait", "raise"]
    with pytest.raises(StoreUnavailable, match="the store is away"):
        result.get(timeout=5)


def test_a_store_that_fails_at_the_end_changes_no_outcome_and_is_asked_again(local_app):
    """Case 11."""
    a = local_app({"t": "until_finished"})
    result = a.task().delay(1)
    a.store.failing.add("finish")
    a.run_next()
    assert result.get(timeout=5) == 1
    assert len(a.store.held()["running"]) == 1
    a.store.failing.clear()
    a.dedupe.guard.store.places["default"].breaker._retry_at = 0.0
    wait_until(lambda: a.store.held() == NOTHING)


@pytest.mark.parametrize("first_end", [retries, requeues])
def test_a_late_release_holds_no_lock_for_a_second_attempt_that_has_run(local_app, first_end):
    a = local_app({"t": "until_started"})
    ends = [first_end, returns]
    a.task(lambda task, value: ends.pop(0)(task, value)).delay(1)
    (message,) = a.messages()
    a.store.failing.add("finish")
    a.start(message)
    a.store.failing.clear()
    a.dedupe.guard.store.places["default"].breaker._retry_at = 0.0
    a.start((a.messages() or [message])[0])
    assert a.ran == [1, 1]
    wait_until(lambda: not a.dedupe.guard.heartbeat._releases)
    assert a.store.held() == NOTHING


# Observe


def test_observe_lets_everything_run_at_once_and_tells_what_it_would_do(local_app):
    a = local_app({"t": "queue_and_run", "u": "until_finished"}, mode="observe")
    t = a.task()
    hold(a, t)
    a.start(foreign(a, t))
    assert a.ran == [1]
    assert a.waiting() == 0
    (event,) = a.told(RunRefused)
    assert (event.decision, event.observed) == ("wait", True)
    assert a.store.held() == {**NOTHING, "running": ["holder"]}


def _in_thread(do: Any) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def _outlive(a: Any, task: Any) -> str:
    a.clock.turn(61)
    a.store.begin([_begin_ask(a.dedupe.policies("t")[0], current_lease().key)], _attempt("other", ""))
    return "first"
