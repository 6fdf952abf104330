"""What never ran, or was killed, gives its locks back: the parent process speaks for it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals as celery_signals
from celery.exceptions import Reject
from celery.worker import state as worker_state

from celery_dedupe import duplicate_of
from celery_dedupe.core.asks import Attempt
from celery_dedupe.core.ticket import HEADER, from_headers
from celery_dedupe.core.verdicts import begin_ask
from tests.unit.conftest import NOTHING, Consumer


@pytest.fixture(autouse=True)
def no_revocations():
    yield
    worker_state.revoked.clear()


def publish(a: Any, task: Any, task_id: str = "id", **options: Any) -> Any:
    task.apply_async((1,), task_id=task_id, **options)
    return a.messages()[-1]


def foreign(a: Any, task_id: str = "id") -> Any:
    """The message of a program that does not have the extension."""
    with a.app.producer_or_acquire() as producer:
        message = a.app.amqp.create_task_message(task_id, "t", (1,), {})
        a.app.amqp.send_task_message(producer, "t", message)
    return a.messages()[-1]


def begin(a: Any, message: Any) -> None:
    """A child process starts the message, and is never heard of again."""
    ticket = from_headers(message.headers)
    request = a.receive(message)
    keys = ticket.keys if ticket else a.dedupe.keys(_call(request), a.dedupe.policies("t"))
    asks = [
        begin_ask(policy, key, 0.0, comes_back=False)
        for policy, key in zip(a.dedupe.policies("t"), keys, strict=True)
    ]
    a.store.begin(asks, Attempt(request.id, f"token of {request.id}", started=2**50))


def _call(request: Any) -> Any:
    from celery_dedupe.messages import requested, signature_of

    return requested("t", request, signature_of(request.task))


def killed(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except type(error):
        return ExceptionInfo()


def die(request: Any, error: Exception) -> None:
    """What the parent hears of a child's death."""
    if isinstance(error, TimeLimitExceeded):
        # As Celery 5.7 does; the versions before tell nothing.
        for _ in range(2):
            celery_signals.task_failure.send(
                sender=request.task, task_id=request.id, exception=error, args=(), kwargs={}
            )
    else:
        request.on_failure(killed(error))


def test_a_revoked_task_frees_its_claim_and_the_next_call_is_new(local_app):
    """Case 3."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    message = publish(a, t)
    worker_state.revoked.add("id")
    a.start(message)
    assert a.ran == []
    assert a.store.held() == NOTHING
    assert duplicate_of(t.delay(1)) is None


def test_an_expired_task_frees_its_claim(local_app):
    """Case 4."""
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task(), expires=3600)
    request = a.receive(message)
    request.expires = request.expires.replace(year=2000)
    request.execute()
    assert a.ran == []
    assert a.store.held() == NOTHING


def test_a_revoked_copy_does_not_free_the_slot_of_the_one_that_runs(local_app):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    begin(a, message)
    worker_state.revoked.add("id")
    a.start(message)
    assert a.store.held() == {**NOTHING, "running": ["id"]}


def test_a_terminated_task_frees_its_slot(local_app):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    begin(a, message)
    a.receive(message)._announce_revoked("terminated", True, "15", False)
    assert a.store.held() == NOTHING


@pytest.mark.parametrize("error", [WorkerLostError("signal 9"), TimeLimitExceeded(1)])
@pytest.mark.parametrize("send", [publish, lambda a, t: foreign(a)], ids=["ours", "foreign"])
def test_a_killed_child_frees_its_lock_at_once(local_app, error, send):
    """Case 1: with a ticket, and for a program without the extension."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    message = send(a, t)
    begin(a, message)
    die(a.receive(message), error)
    assert a.store.held() == NOTHING
    assert duplicate_of(t.delay(1)) is None


def test_a_killed_child_whose_message_comes_again_frees_nothing(local_app):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task(acks_late=True, reject_on_worker_lost=True))
    begin(a, message)
    die(a.receive(message), WorkerLostError("signal 9"))
    assert a.store.held() == {**NOTHING, "running": ["id"]}


def test_an_ordinary_failure_frees_nothing_of_another_copy(local_app):
    """Celery 5.7 tells of a rejected message here; the process that ran it has freed its own."""
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    begin(a, message)
    request = a.receive(message)
    celery_signals.task_failure.send(
        sender=request.task, task_id="id", exception=Reject("no"), args=(), kwargs={}
    )
    assert a.store.held() == {**NOTHING, "running": ["id"]}


@pytest.mark.parametrize(("acks_late", "left"), [(False, []), (True, ["id"])])
def test_a_task_that_a_cold_shutdown_cut_short_is_freed_unless_it_comes_back(local_app, acks_late, left):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task(acks_late=acks_late))
    begin(a, message)
    a.receive(message)._announce_cancelled()
    assert a.store.held() == {**NOTHING, "running": left}


def test_a_real_retry_keeps_its_claim(local_app):
    a = local_app({"t": "until_finished"})

    def body(task: Any, value: Any) -> None:
        raise task.retry(countdown=30)

    a.start(publish(a, a.task(body)))
    assert a.store.held() == {**NOTHING, "queued": ["id"]}


def test_a_killed_child_does_not_free_the_lock_of_another_task(local_app):
    """Case 12."""
    a = local_app({"t": "until_finished"})
    t = a.task()
    begin(a, publish(a, t, "holder"))
    die(a.receive(foreign(a, "other")), WorkerLostError("signal 9"))
    assert a.store.held() == {**NOTHING, "running": ["holder"]}


@pytest.mark.parametrize("error", [WorkerLostError, ValueError])
def test_a_failure_in_the_tasks_own_process_is_ended_there_once(local_app, error):
    a = local_app({"t": "until_finished"})

    def body(task: Any, value: Any) -> None:
        raise error("by the task itself")

    message = publish(a, a.task(body))
    a.store.calls.clear()
    a.start(message)
    assert a.store.calls == ["begin", "finish"]
    assert a.store.held() == NOTHING


def test_a_task_that_nobody_has_here_frees_its_claim(local_app):
    """Case 8."""
    a, worker = local_app({"t": "until_finished"}), local_app({}, install=False)
    message = publish(a, a.task())
    worker.dedupe = type(worker.dedupe)(worker.app, client=a.store, rules={})
    worker.dedupe.init_app()
    celery_signals.task_unknown.send(
        sender=Consumer(worker.app), message=message, exc=KeyError("t"), name="t", id="id"
    )
    assert a.store.held() == NOTHING


def test_a_message_that_cannot_be_decoded_frees_its_claim(local_app):
    """Case 8."""
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    celery_signals.task_rejected.send(sender=Consumer(a.app), message=message, exc=ValueError())
    assert a.store.held() == NOTHING


@pytest.mark.parametrize("headers", [None, {}, {"id": "id"}, {"id": "id", HEADER: "?"}])
def test_a_message_that_is_no_task_is_left_alone(local_app, headers, caplog):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    message.headers = headers
    celery_signals.task_rejected.send(sender=Consumer(a.app), message=message, exc=None)
    celery_signals.task_unknown.send(sender=Consumer(a.app), message=message, exc=None, name="x", id="id")
    assert len(a.store.held()["queued"]) == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_tracer_that_fails_leaves_no_claim(local_app, monkeypatch):
    """The result backend cannot say STARTED: Celery ends the task as an internal error, and it never ran."""
    a = local_app({"t": "until_finished"})
    t = a.task(track_started=True)
    message = publish(a, t)

    store_result = t.backend.store_result

    def broken(task_id: str, result: Any, state: str, **named: Any) -> Any:
        if state == "STARTED":
            raise ValueError("backend away")
        return store_result(task_id, result, state, **named)

    monkeypatch.setattr(t.backend, "store_result", broken)
    with pytest.warns(RuntimeWarning, match="Exception raised outside body"):
        a.start(message)
    assert a.ran == []
    assert a.store.held() == NOTHING


def test_an_end_that_cannot_be_told_to_the_store_is_told_later_and_harms_nothing(local_app, log):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    worker_state.revoked.add("id")
    a.store.down = True
    a.start(message)
    assert len(a.dedupe.guard.heartbeat._releases) == 1
    assert "Signal handler" not in log.text


def test_an_error_of_our_own_is_logged_and_stops_nothing(local_app, monkeypatch, log):
    a = local_app({"t": "until_finished"})
    message = publish(a, a.task())
    worker_state.revoked.add("id")

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(a.dedupe.guard, "withdraw", broken)
    a.start(message)
    assert "t[id]: its claim was not given back and will run out by itself" in log.text


def test_what_another_app_tells_is_not_for_us(local_app):
    a, other = local_app({"t": "until_finished"}), local_app({})
    message = publish(a, a.task())
    for signal in (celery_signals.task_rejected, celery_signals.task_unknown):
        signal.send(sender=Consumer(other.app), message=message, exc=None, name="t", id="id")
    assert a.store.held() == {**NOTHING, "queued": ["id"]}


def test_a_request_is_remembered_for_as_long_as_the_worker_does(local_app):
    a = local_app({"t": "until_finished"})
    request = a.receive(publish(a, a.task()))
    assert dict(a.dedupe._endings._received) == {"id": request}
    del request
    gc.collect()
    assert not a.dedupe._endings._received


def test_a_request_of_a_task_without_a_lock_is_not_remembered(local_app):
    a = local_app({})
    request = a.receive(publish(a, a.task()))
    assert not a.dedupe._endings._received
    assert request.id == "id"
