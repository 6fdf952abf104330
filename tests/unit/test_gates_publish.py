"""The publish gate: one message for equal calls, and every caller told what became of theirs."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest
from celery import chain, chord, group
from celery import signals as celery_signals
from celery.exceptions import TaskRevokedError
from kombu.exceptions import EncodeError, OperationalError

from celery_dedupe import (
    ConfigurationError,
    DuplicateTask,
    Policy,
    StoreUnavailable,
    UnkeyableArguments,
    duplicate_of,
)
from celery_dedupe.core.ticket import HEADER, from_headers
from celery_dedupe.signals import LockTaken, PublishDropped, RanUnprotected
from tests.harness.waiting import wait_until
from tests.unit.conftest import NOTHING

HOUR = 3600.0


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt and gevent's Timeout."""


@pytest.fixture
def receiver():
    """``receiver(function)``: one more receiver of ``before_task_publish``, after ours."""
    connected = []

    def connect(function: Any) -> None:
        connected.append(function)
        celery_signals.before_task_publish.connect(function, weak=False)

    yield connect
    for function in connected:
        celery_signals.before_task_publish.disconnect(function)


def test_the_first_publish_goes_out_and_the_second_gets_its_result(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    first, second = t.delay(1), t.delay(1)
    assert second.id == first.id
    assert a.waiting() == 1
    a.run_next()
    assert first.get(timeout=5) == second.get(timeout=5) == 1
    assert a.ran == [1]
    assert a.store.held() == NOTHING


def test_duplicate_of_tells_who_holds_the_lock(local_app):
    """Case 58."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    first, second = t.delay(1), t.delay(1)
    assert duplicate_of(first) is None
    found = duplicate_of(second)
    assert (found.task_id, found.task, found.state, found.expires_in) == (first.id, "t", "queued", HOUR)
    assert found.key.startswith("dedupe:t:")
    assert duplicate_of(None) is None


@pytest.mark.parametrize(
    ("options", "left"),
    [({}, HOUR), ({"countdown": 7200}, 3 * HOUR), ({"expires": 60}, 60), ({"eta": None}, HOUR)],
)
def test_a_claim_lives_until_the_start_it_waits_for_and_never_beyond_the_expiry(local_app, options, left):
    """Cases 4 and 32."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.apply_async((1,), **options)
    assert duplicate_of(t.delay(1)).expires_in == pytest.approx(left, abs=5)


def test_another_call_is_no_duplicate(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    assert len({t.delay(1).id, t.delay("1").id, t.delay(2).id, t.delay().id}) == 4
    assert a.waiting() == 4


def test_equal_calls_are_equal_however_they_are_written(local_app):
    """Cases 33, 35 and 48: by position, by name, with the default, by the task's name, as beat does."""
    a = local_app({"t": {"lock": "until_finished"}})
    t = a.task()
    first = t.delay(None)
    for second in (t.delay(), t.apply_async(kwargs={"value": None}), a.app.send_task("t", (None,))):
        assert second.id == first.id


def test_on_duplicate_none_gives_none(local_app):
    a = local_app({"t": {"on_duplicate": "none"}})
    t = a.task()
    assert t.delay(1) is not None
    assert t.delay(1) is None
    assert a.waiting() == 1


def test_on_duplicate_raise_gives_an_error_that_tells_all(local_app):
    a = local_app({"t": {"on_duplicate": "raise"}})
    t = a.task()
    first = t.delay(1)
    with pytest.raises(DuplicateTask, match=f"t is a duplicate of {first.id}, which is queued") as caught:
        t.delay(1)
    assert (caught.value.task, caught.value.task_id, caught.value.state) == ("t", first.id, "queued")
    assert caught.value.expires_in == HOUR
    assert a.waiting() == 1


def test_of_several_threads_one_publishes(local_app):
    """Case 17."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.delay("the app is set up by now")
    barrier = threading.Barrier(8)
    ids: list[str] = []

    def publish() -> None:
        barrier.wait(10)
        ids.append(t.delay(1).id)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert a.waiting() == 2


# A call's own wishes


def test_a_call_may_opt_out(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.delay(1)
    results = [
        t.apply_async((1,), dedupe=False),
        t.s(1).set(dedupe=False).apply_async(),
        a.app.send_task("t", (1,), dedupe=False),
    ]
    assert not any(map(duplicate_of, results))
    assert a.waiting() == 4
    assert a.store.calls == ["claim"]
    assert [from_headers(headers).override for headers in a.sent[1:]] == [False] * 3


def test_a_call_may_bring_its_own_key(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    first = t.apply_async((1,), dedupe={"key": "same"})
    assert t.s(2).set(dedupe={"key": "same"}).delay().id == first.id
    assert t.delay(1).id != first.id


def test_a_call_of_a_task_without_a_rule_may_bring_a_lock(local_app):
    a = local_app({})
    t = a.task()
    first = t.apply_async((1,), dedupe=Policy(lock="until_finished", key=[]))
    assert t.apply_async((2,), dedupe="until_finished").id != first.id
    assert t.apply_async((2,), dedupe=Policy(lock="until_finished", key=[])).id == first.id


def test_a_tasks_own_terms_beat_the_rules(local_app):
    a = local_app({"*": "until_finished"})
    free, bound = a.task(name="free", dedupe=False), a.task(name="bound", dedupe={"on_duplicate": "none"})
    assert free.delay(1).id != free.delay(1).id
    assert [bound.delay(1) is None, bound.delay(1) is None] == [False, True]


# What must not happen


@pytest.mark.parametrize("wish", [{"lock": "until_finised"}, {"keep": "5 parsecs"}, 42])
def test_a_wrong_wish_is_told_to_the_caller_and_nothing_is_sent(local_app, wish):
    a = local_app({"t": "until_finished"})
    with pytest.raises(ConfigurationError, match="dedupe= of a call of t"):
        a.task().apply_async((1,), dedupe=wish)
    assert a.waiting() == 0
    assert a.store.held() == NOTHING


def test_arguments_without_a_key_are_told_to_the_caller_and_nothing_is_sent(local_app):
    """Case 45."""
    a = local_app({"t": "until_finished"})
    with pytest.raises(UnkeyableArguments, match="'value' of 't'"):
        a.task().delay(object())
    assert a.waiting() == 0
    assert a.store.calls == []


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ({"on_duplicate": "raise"}, DuplicateTask),
        ({"lock": "once"}, StoreUnavailable),
        ({"key": lambda value: 1 / value}, UnkeyableArguments),
        ({"key": "no.such.module"}, ConfigurationError),
    ],
)
def test_a_caller_sees_its_own_error_and_nothing_of_ours_behind_it(local_app, rule, error):
    a = local_app({"t": {"key": [], **rule}})
    t = a.task()
    if error is DuplicateTask:
        t.delay(0)
    a.store.down = error is StoreUnavailable
    with pytest.raises(error) as caught:
        t.delay(0)
    assert "_Dropped" not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, ZeroDivisionError) == (error is UnkeyableArguments)


def test_an_argument_that_cannot_be_sent_leaves_no_claim(local_app):
    """Case 5."""
    a = local_app({"t": {"lock": "until_finished", "key": []}})
    with pytest.raises(EncodeError):
        a.task().delay(object())
    assert a.store.calls == ["claim", "withdraw"]
    assert a.store.held() == NOTHING


def test_a_broker_that_is_down_leaves_no_claim(local_app, monkeypatch):
    """Case 5."""
    a = local_app({"t": "until_finished"})
    t = a.task()

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("broker away")

    with monkeypatch.context() as patch:
        patch.setattr("kombu.Producer.publish", refuse)
        with pytest.raises(OperationalError, match="broker away"):
            t.delay(1)
    assert a.store.held() == NOTHING
    assert duplicate_of(t.delay(1)) is None
    assert a.waiting() == 1


@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt, SystemExit])
def test_whoever_stops_a_publish_after_us_leaves_no_claim(local_app, receiver, error):
    a = local_app({"t": "until_finished"})

    def stop(**_: Any) -> None:
        raise error

    receiver(stop)
    with pytest.raises(error):
        a.task().delay(1)
    assert a.waiting() == 0
    assert a.store.held() == NOTHING


def test_an_error_of_another_receiver_changes_nothing(local_app, receiver):
    a = local_app({"t": "until_finished"})

    def stumble(**_: Any) -> None:
        raise ValueError

    receiver(stumble)
    t = a.task()
    assert t.delay(1).id == t.delay(1).id
    assert a.waiting() == 1


def test_ours_is_the_first_receiver(local_app, receiver):
    """A tracer that stood before it would open a span for a publish that does not happen."""
    seen: list[Any] = []
    receiver(lambda headers, **_: seen.append(headers[HEADER]))
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.delay(1), t.delay(1)
    assert len(seen) == 1, "the dropped publish reaches nobody, the other one comes with its ticket"


def test_a_receiver_may_publish_in_the_middle_of_a_publish(local_app, receiver):
    a = local_app({"*": "until_finished"})
    t, audit = a.task(), a.task(name="audit")
    inner: list[Any] = []

    def publish(sender: str, **_: Any) -> None:
        if sender == "t":
            inner.append(audit.delay("t was called"))

    receiver(publish)
    assert duplicate_of(t.delay(1)) is None
    assert duplicate_of(t.delay(2)) is None
    assert [duplicate_of(result) is not None for result in inner] == [False, True]
    assert [headers["task"] for headers in a.sent] == ["audit", "t", "t"]
    assert len(a.store.held()["queued"]) == 3


def test_a_publish_in_the_middle_of_an_equal_one_is_its_duplicate(local_app, receiver):
    a = local_app({"t": "until_finished"})
    t = a.task()
    inner: list[Any] = []

    def again(**_: Any) -> None:
        inner.append(t.delay(1))

    receiver(again)
    outer = t.delay(1)
    assert [result.id for result in inner] == [outer.id]
    assert duplicate_of(outer) is None
    assert a.waiting() == 1


def test_a_publish_that_fails_in_the_middle_of_another_takes_only_its_own_claim_back(local_app, receiver):
    a = local_app({"*": {"key": []}})
    t, audit = a.task(), a.task(name="audit")

    def publish(sender: str, **_: Any) -> None:
        if sender == "t":
            audit.delay(object())

    receiver(publish)
    result = t.delay(1)
    assert a.store.held()["queued"] == [result.id]


def test_a_message_that_is_put_on_the_queue_by_other_means_is_never_dropped(local_app):
    """Case 34, at the other end: the gate works in ``send_task`` only."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.delay(1)
    with a.app.producer_or_acquire() as producer:
        message = a.app.amqp.create_task_message("id", "t", (1,), {})
        a.app.amqp.send_task_message(producer, "t", message)
    assert a.waiting() == 2
    assert HEADER not in a.sent[1]


def test_a_message_that_a_receiver_puts_on_the_queue_by_other_means_is_left_alone(local_app, receiver):
    a = local_app({"*": "until_finished"})
    t = a.task()

    def put(sender: str, **_: Any) -> None:
        if sender == "t":
            with a.app.producer_or_acquire() as producer:
                message = a.app.amqp.create_task_message("id", "audit", (1,), {})
                a.app.amqp.send_task_message(producer, "audit", message)

    receiver(put)
    t.delay(1)
    assert [(headers["task"], HEADER in headers) for headers in a.sent] == [("audit", False), ("t", True)]


def test_a_router_may_publish_before_we_have_seen_the_call(local_app):
    a = local_app({"*": "until_finished"})
    t, audit = a.task(), a.task(name="audit")

    def route(name: str, *_: Any, **__: Any) -> None:
        if name == "t":
            audit.delay("t is routed")

    a.app.conf.task_routes = (route,)
    first = t.delay(1)
    assert t.delay(1).id == first.id
    assert [headers["task"] for headers in a.sent] == ["audit", "t"]


# What costs nothing


def test_a_task_without_a_rule_is_sent_as_ever(local_app):
    a = local_app({"other": "once"})
    t = a.task()
    t.delay(1), t.delay(1)
    assert a.waiting() == 2
    assert not any(HEADER in headers for headers in a.sent)
    assert a.dedupe._guard is None, "not even the store was opened"


def test_a_publish_and_its_duplicate_cost_one_call_of_the_store_each(local_app):
    a = local_app({"t": [{"lock": "until_started"}, {"lock": "while_running", "key": []}, {"key": []}]})
    t = a.task()
    t.delay(1)
    assert a.store.calls == ["claim"]
    t.delay(1)
    assert a.store.calls == ["claim", "claim"]


def test_a_lock_that_claims_nothing_at_publish_asks_nothing(local_app):
    a = local_app({"t": "while_running"})
    t = a.task()
    t.delay(1), t.delay(1)
    assert a.store.calls == []
    assert a.waiting() == 2


def test_a_dropped_publish_leaves_no_subscription_behind(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    subscribed: list[str] = []

    class Consumer:
        def cancel_for(self, task_id: str) -> None:
            subscribed.remove(task_id)

    a.app.backend.on_task_call = lambda producer, task_id: subscribed.append(task_id)
    a.app.backend.result_consumer = Consumer()
    first = t.delay(1)
    for _ in range(3):
        t.delay(1)
    assert subscribed == [first.id]


# Workflows


def test_the_head_of_a_second_chain_is_published_so_that_its_tail_is_not_lost(local_app):
    """Case 37."""
    a = local_app({"head": "until_finished"})
    head, tail = a.task(name="head"), a.task(name="tail")
    for _ in range(2):
        chain(head.si(1), tail.si(2)).apply_async()
    assert a.waiting() == 2
    assert len(a.store.held()["queued"]) == 1
    (event,) = a.told(PublishDropped)
    assert event.observed
    assert [from_headers(headers).workflow for headers in a.sent] == [True, True]


@pytest.mark.parametrize("canvas", [group, lambda tasks: chord(tasks, tasks[0].type.app.tasks["end"].si())])
def test_equal_members_of_a_group_or_a_chord_are_all_published(local_app, canvas):
    """Case 38."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    a.task(name="end")
    canvas([t.s(1), t.s(1)]).apply_async()
    assert a.waiting() == 2


@pytest.mark.parametrize("option", ["link", "link_error"])
def test_a_call_with_a_callback_is_published(local_app, option):
    a = local_app({"t": "until_finished"})
    t, after = a.task(), a.task(name="after")
    t.delay(1)
    t.apply_async((1,), **{option: after.si()})
    assert a.waiting() == 2


def test_in_workflow_drop_ends_the_dropped_head_and_its_tail_visibly(local_app):
    a = local_app({"head": {"lock": "until_finished", "in_workflow": "drop"}})
    head, tail = a.task(name="head"), a.task(name="tail")
    first = head.delay(1)
    result = chain(head.si(1), tail.si(2)).apply_async()
    assert a.waiting() == 1
    with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
        result.get(timeout=5)


# Other apps, other versions


def test_two_apps_in_one_process_do_not_meet(local_app):
    one, two, bare = (
        local_app({"t": "until_finished"}),
        local_app({"t": {"on_duplicate": "none"}}),
        local_app(install=False),
    )
    tasks = [each.task() for each in (one, two, bare)]
    results = [[task.delay(1) for _ in range(2)] for task in tasks]
    assert [each.waiting() for each in (one, two, bare)] == [1, 1, 2]
    assert results[0][0].id == results[0][1].id
    assert results[1][1] is None
    assert (len(one.store.held()["queued"]), len(two.store.held()["queued"])) == (1, 1)


def test_a_receiver_may_publish_to_another_app(local_app, receiver):
    one, two = local_app({"t": "until_finished"}), local_app({"audit": "until_finished"})
    t, audit = one.task(), two.task(name="audit")

    def publish(sender: str, **_: Any) -> None:
        if sender == "t":
            audit.delay("t was called")

    receiver(publish)
    t.delay(1), t.delay(2)
    assert (one.waiting(), two.waiting()) == (2, 1)


def test_messages_of_protocol_1_are_claimed_too(local_app):
    a = local_app({"t": "until_finished"}, conf={"task_protocol": 1})
    t = a.task()
    first = t.delay(1)
    assert t.delay(1).id == first.id
    assert a.store.held()["queued"] == [first.id]
    a.run_next()
    assert a.ran == [1]
    assert a.store.held() == NOTHING


def test_an_id_of_the_callers_own_is_never_its_own_duplicate(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    for _ in range(2):
        assert duplicate_of(t.apply_async((1,), task_id="mine")) is None
    assert a.waiting() == 2


def test_whoever_waits_for_an_id_of_its_own_is_told_that_it_was_a_duplicate(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    first = t.delay(1)
    assert duplicate_of(t.apply_async((1,), task_id="mine")).task_id == first.id
    mine = t.AsyncResult("mine")
    assert (mine.state, str(mine.result)) == ("REVOKED", f"duplicate of {first.id}")
    assert a.waiting() == 1


def test_a_result_backend_that_is_away_makes_no_error_of_a_duplicate(local_app, monkeypatch, caplog):
    a = local_app({"t": "until_finished"})
    t = a.task()
    first = t.delay(1)

    def away(*args, **kwargs):
        raise ConnectionError("the result backend is away")

    with monkeypatch.context() as patch:
        patch.setattr(a.app.backend, "mark_as_failure", away)
        assert duplicate_of(t.apply_async((1,), task_id="mine")).task_id == first.id
    assert "t[mine] is dropped, and its result was not stored" in caplog.text
    caplog.clear()


def test_nobody_waits_for_a_duplicate_whose_result_is_ignored(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task(ignore_result=True)
    t.delay(1)
    duplicate = t.delay(1)
    assert duplicate_of(duplicate)
    assert duplicate.ignored
    assert duplicate.get(timeout=1) is None
    assert not a.app.tasks["t"].apply_async((2,), ignore_result=False).ignored


def test_options_by_position_are_kept_though_an_app_of_the_users_has_a_send_task_of_its_own(local_app):
    a = local_app({"t": "until_finished"})
    a.task()

    class Own(type(a.app)):
        def send_task(self, *args, **kwargs):
            return super().send_task(*args, **kwargs)

    a.app.__class__ = Own
    assert a.app.send_task("t", (1,), {}, None, None, "mine").id == "mine"
    with pytest.raises(TypeError, match="by position"):
        a.app.send_task("t", (1,), {}, *range(99))


def test_work_done_once_under_an_id_keeps_its_result_when_that_id_is_used_again(local_app):
    a = local_app({"t": "once"})
    t = a.task()
    t.apply_async((1,), task_id="mine")
    a.run_next()
    assert duplicate_of(t.apply_async((1,), task_id="mine")).state == "done"
    assert t.AsyncResult("mine").state == "SUCCESS"


# Arguments without a key


def test_observe_sends_a_call_that_has_no_key(local_app):
    a = local_app({"t": "until_finished"}, mode="observe", conf={"task_serializer": "pickle"})
    t = a.task()
    t.delay(object())
    assert a.waiting() == 1
    (event,) = a.told(RanUnprotected)
    assert (event.stage, "UnkeyableArguments" in event.reason) == ("publish", True)


def test_a_link_that_has_no_key_does_not_fail_the_task_it_follows(local_app):
    a = local_app({"t": "until_finished"})
    a.dedupe.keys = _no_key
    t = a.task()
    t.apply_async((1,), parent_id="parent", headers={"dedupe": {"v": 1, "k": ["another's"], "n": "x"}})
    (message,) = a.messages()
    assert "dedupe" not in message.headers
    assert [event.stage for event in a.told(RanUnprotected)] == ["publish"]
    with pytest.raises(UnkeyableArguments):
        t.delay(1)


def _no_key(call, policies):
    raise UnkeyableArguments("no key")


# Modes


def test_observe_reports_everything_and_drops_nothing(local_app):
    a = local_app({"t": {"on_duplicate": "raise"}}, mode="observe")
    t = a.task()
    first, second = t.delay(1), t.delay(1)
    assert a.waiting() == 2
    (event,) = a.told(PublishDropped)
    assert (event.task_id, event.duplicate.task_id, event.observed) == (second.id, first.id, True)
    assert duplicate_of(second) is None


@pytest.mark.parametrize("wish", [None, False, {"key": "x"}, "until_finished"])
def test_off_does_nothing_and_needs_no_store(local_app, wish):
    a = local_app({"t": "until_finished"}, mode="off", client=None)
    t = a.task()
    for _ in range(2):
        t.apply_async((1,), dedupe=wish)
    assert a.waiting() == 2
    for message in a.messages():
        a.start(message)
    assert a.ran == [1, 1]
    assert a.events == []


# Without the store


def test_without_the_store_a_call_goes_out_unprotected_and_that_is_told(local_app):
    """Case 22."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    a.store.down = True
    assert t.delay(1).id != t.delay(1).id
    assert a.waiting() == 2
    assert a.store.calls == ["claim"], "the second was not kept waiting for the store"
    assert [(event.stage, "the store is away" in event.reason) for event in a.told(RanUnprotected)] == [
        ("publish", True)
    ] * 2


def test_without_the_store_refuse_raises_and_nothing_is_sent(local_app):
    a = local_app({"t": "once"})
    a.store.down = True
    with pytest.raises(StoreUnavailable, match="the store is away"):
        a.task().delay(1)
    assert a.waiting() == 0


def test_a_claim_whose_grant_was_lost_on_the_wire_is_given_back(local_app):
    """Nobody sends the message that would end it, so every later call would be its duplicate."""
    a = local_app({"t": {"lock": "until_finished", "on_store_error": "refuse"}})
    t = a.task()
    a.store.mute.add("claim")
    with pytest.raises(StoreUnavailable, match="the reply was lost"):
        t.delay(1)
    assert len(a.store.held()["queued"]) == 1
    a.store.mute.clear()
    a.dedupe.guard.store.places["default"].breaker._retry_at = 0.0
    wait_until(lambda: a.store.held() == NOTHING)


def test_a_claim_whose_grant_was_lost_is_given_back_where_the_publish_fails_as_well(local_app, monkeypatch):
    """Broker and store are one server, and it stalls."""
    a = local_app({"t": {"lock": "until_finished", "key": []}})
    a.store.mute.add("claim")
    with pytest.raises(EncodeError):
        a.task().delay(object())
    a.store.mute.clear()
    a.dedupe.guard.store.places["default"].breaker._retry_at = 0.0
    wait_until(lambda: a.store.held() == NOTHING)


@pytest.mark.parametrize("error", [Interrupt, KeyError])
def test_a_claim_that_is_interrupted_is_given_back(local_app, monkeypatch, error):
    a = local_app({"t": "until_finished"})
    granted = a.store.claim

    def interrupted(*args: Any) -> None:
        granted(*args)
        raise error

    monkeypatch.setattr(a.store, "claim", interrupted)
    with pytest.raises(error):
        a.task().delay(1)
    assert a.waiting() == 0
    assert a.store.held() == NOTHING


def test_a_store_that_was_skipped_is_asked_for_nothing_back(local_app):
    a = local_app({"t": "once"})
    t = a.task()
    a.store.down = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            t.delay(1)
    assert len(a.dedupe.guard.heartbeat._releases) == 1


# Settings


def test_settings_may_come_after_init_app(local_app):
    """Case 51."""
    a = local_app()
    t = a.task()
    a.app.conf.dedupe_rules = {"t": "until_finished"}
    assert t.delay(1).id == t.delay(1).id


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rules": {"t": "until_finised"}}, "until_finished"),
        ({"rules": {"t": {"lock": "until_expired"}}}, "period"),
        ({"rules": {"t": {"key": ["nam"]}}}, "'nam'"),
        ({"mode": "enforced"}, "enforce"),
        ({"url": "amqp://guest:secret@mq"}, "dedupe_url|url"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_setting_is_told_to_the_caller_of_the_first_publish(local_app, settings, told):
    named = {"client": None} if "url" in settings else {}
    a = local_app(settings.pop("rules", {"t": "until_finished"}), **settings, **named)
    t = a.task()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=told) as caught:
            t.delay(1)
        assert "secret" not in str(caught.value)
    assert a.waiting() == 0


def test_what_was_granted_is_told(local_app):
    a = local_app({"t": "until_finished"})
    result = a.task().delay(1)
    (event,) = a.told(LockTaken)
    assert (event.task_id, event.stage, event.fences) == (result.id, "queued", ())
    assert event.keys == tuple(key for key, _ in a.store.scan("*"))
