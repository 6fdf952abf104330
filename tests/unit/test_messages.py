"""Celery's payload shapes, both protocols, as the calls they are."""

from __future__ import annotations

import inspect
import time
import uuid
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task, chain, chord, group
from celery.app.task import Context

from celery_dedupe import messages
from celery_dedupe.core.call import Call

BOTH = pytest.mark.parametrize("protocol", [1, 2])


@pytest.fixture
def published(local_app, monkeypatch):
    """``published(protocol, publish)``: the calls that the extension saw in what ``publish(task)`` sends."""

    def look(protocol: int, publish: Any) -> list[Call]:
        a = local_app({"*": "until_finished"}, conf={"task_protocol": protocol})
        seen: list[Call] = []
        read = messages.published

        def note(*args: Any) -> Call:
            seen.append(read(*args))
            return seen[-1]

        monkeypatch.setattr(messages, "published", note)
        publish(a.task())
        return seen

    return look


@BOTH
def test_a_call_is_its_arguments_and_its_id(published, protocol):
    (call,) = published(protocol, lambda t: t.apply_async((1,), task_id="id", retries=3))
    assert (call.task, call.task_id, list(call.args), call.kwargs) == ("t", "id", [1], {})
    assert (call.retries, call.workflow, call.eta_in, call.expires_in) == (3, False, 0, None)
    assert list(call.signature.parameters) == ["value"]


@BOTH
@pytest.mark.parametrize(
    ("options", "eta_in", "expires_in"),
    [
        ({"countdown": 60}, 60, None),
        ({"eta": (timezone.utc, 3600)}, 3600, None),
        ({"eta": (timezone(timedelta(hours=5)), 3600)}, 3600, None),
        ({"expires": 90}, 0, 90),
        ({"expires": (timezone.utc, 300)}, 0, 300),
    ],
)
def test_times_are_seconds_from_now(published, protocol, options, eta_in, expires_in):
    """Case 21: by the clock of the one that publishes, and compared with no other."""
    # A moment in a zone is made here: when tests are collected may be minutes ago.
    options = {
        name: datetime.now(value[0]) + timedelta(seconds=value[1]) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    (call,) = published(protocol, lambda t: t.apply_async((1,), **options))
    assert call.eta_in == pytest.approx(eta_in, abs=60)
    assert (
        call.expires_in is None
        if expires_in is None
        else call.expires_in == pytest.approx(expires_in, abs=60)
    )


@BOTH
@pytest.mark.parametrize(
    "publish",
    [
        lambda t: t.apply_async((1,), link=t.si(2)),
        lambda t: t.apply_async((1,), link_error=t.si(2)),
        lambda t: group([t.s(1), t.s(1)]).apply_async(),
        lambda t: chord([t.s(1), t.s(2)], t.si(3)).apply_async(),
    ],
    ids=["link", "link_error", "group", "chord"],
)
def test_a_message_that_others_wait_for_is_part_of_a_workflow(published, protocol, publish):
    calls = published(protocol, publish)
    assert {call.workflow for call in calls} == {True}


def test_the_head_of_a_chain_is_part_of_a_workflow(published):
    (head,) = published(2, lambda t: chain(t.s(1), t.si(2)).apply_async())
    assert head.workflow


@BOTH
def test_the_worker_sees_the_call_that_was_published(local_app, protocol):
    """Cases 43 and 46: so its keys are the same."""
    a = local_app({"t": "until_finished"}, conf={"task_protocol": protocol})
    t = a.task()
    t.apply_async((1,), task_id="id")
    request = a.receive(a.messages()[0])
    signature = messages.signature_of(t)
    at_start = messages.requested("t", request, signature)
    sent = Call("t", "id", (1,), {}, signature)
    policies = a.dedupe.policies("t")
    assert a.dedupe.keys(at_start, policies) == a.dedupe.keys(sent, policies)


def test_a_request_may_have_no_arguments():
    assert messages.requested("t", Context(id="id"), None) == Call("t", "id", (), {}, None)


def test_the_expiry_of_a_message_that_is_sent_again_is_text(published):
    until = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
    (call,) = published(2, lambda t: t.apply_async((1,), expires=until))
    assert call.expires_in == pytest.approx(300, abs=60)


# Signatures


class Plain(Task):
    name = "plain"

    def run(self, a: int, b: int = 2) -> None: ...


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (Exception,)}])
def test_a_signature_is_what_a_caller_sees(local_app, options):
    """Case 43: ``bind`` and ``autoretry_for`` change nothing of it."""
    app = local_app().app

    def body(*args: Any) -> None: ...

    if options.get("bind"):

        def run(self: Any, a: int, b: int = 2) -> None: ...
    else:

        def run(a: int, b: int = 2) -> None: ...

    task = app.task(run, name="s", lazy=False, shared=False, **options)
    assert list(messages.signature_of(task).parameters) == ["a", "b"]


def test_a_class_is_a_task_like_any_other(local_app):
    task = local_app().app.register_task(Plain())
    assert list(messages.signature_of(task).parameters) == ["a", "b"]


@pytest.mark.parametrize("wrong", [TypeError, ValueError])
def test_a_callable_without_a_signature_has_none(monkeypatch, wrong):
    def refuse(_: Any) -> None:
        raise wrong

    monkeypatch.setattr(inspect, "signature", refuse)
    assert messages.signature_of(SimpleNamespace(run=len)) is None


# Results


@pytest.fixture
def stored(local_app):
    """``stored(state, date_done)``: an app whose backend has that result of the task ``id``."""

    def store(state: str, date_done: Any = None) -> Any:
        a = local_app()
        a.app.backend.get_task_meta = lambda task_id: {"status": state, "date_done": date_done}
        return a.app

    return store


NOON = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)
AT_NOON = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_a_final_result_is_one_that_was_stored_since(stored, state):
    app = stored(state, NOON.isoformat())
    assert messages.final_state(app, "id", AT_NOON) == state
    assert messages.final_state(app, "id", AT_NOON - 1) == state
    assert messages.final_state(app, "id", AT_NOON + 1) is None, "an id that was used before"


@pytest.mark.parametrize("state", ["PENDING", "STARTED", "RETRY", "PROGRESS"])
def test_no_other_state_is_final(stored, state):
    """Case 25: a task that waits for its retry has not ended."""
    assert messages.final_state(stored(state, NOON), "id", 0) is None


@pytest.mark.parametrize(
    "date",
    [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.isoformat(),
        NOON.replace(tzinfo=None).isoformat(),
        NOON.astimezone(timezone(timedelta(hours=-9))).isoformat(),
    ],
)
def test_dates_come_in_every_shape_that_backends_store(stored, date):
    app = stored("SUCCESS", date)
    assert messages.final_state(app, "id", AT_NOON) == "SUCCESS"
    assert messages.final_state(app, "id", AT_NOON + 1) is None


def test_a_date_without_a_fraction_stands_for_its_whole_second(stored):
    app = stored("SUCCESS", NOON.replace(microsecond=0))
    assert messages.final_state(app, "id", AT_NOON + 700) == "SUCCESS"
    assert messages.final_state(app, "id", AT_NOON + 750) is None


@pytest.mark.parametrize("date", [None, "", 0, 1767268800])
def test_a_result_without_a_date_proves_nothing(stored, date):
    assert messages.final_state(stored("SUCCESS", date), "id", 0) is None


@pytest.mark.parametrize("backend", ["rpc://", None])
def test_where_no_result_can_be_looked_up_nothing_is_final(local_app, backend):
    """A look at ``rpc://`` would declare a queue."""
    a = local_app(conf={"result_backend": backend})
    a.app.backend.get_task_meta = a.app.backend.get_task_meta if backend is None else pytest.fail
    assert a.dedupe._state_of("id", 0) is None


def test_a_real_result_is_final_by_the_workers_own_clock(local_app):
    a = local_app()
    before = int(time.time() * 1000)
    result = a.task().delay(1)
    a.run_next()
    assert messages.final_state(a.app, result.id, before) == "SUCCESS"
    assert messages.final_state(a.app, result.id, int(time.time() * 1000) + 1) is None
    assert messages.final_state(a.app, "unknown", before) is None


def redelivered(task_id: str, yes: bool = True) -> Any:
    return SimpleNamespace(id=task_id, eta=None, delivery_info={"redelivered": yes})


def test_a_redelivered_message_of_a_task_that_succeeded_is_known(local_app):
    a = local_app()
    t = a.task()
    result = t.delay(1)
    assert not messages.succeeded_before(t, redelivered(result.id))
    a.run_next()
    assert messages.succeeded_before(t, redelivered(result.id))
    assert not messages.succeeded_before(t, redelivered(result.id, False))
    assert not messages.succeeded_before(t, SimpleNamespace(id=result.id, eta=None, delivery_info=None))


@pytest.mark.parametrize(("eta", "known"), [("2020-01-01T00:00:00Z", True), ("2120-01-01T00:00:00Z", False)])
def test_a_message_with_an_eta_may_be_a_copy_of_a_success_after_it(local_app, eta, known):
    """An older success is that of a task which was published again under its own id."""
    a = local_app()
    t = a.task()
    result = t.delay(1)
    a.run_next()
    request = SimpleNamespace(id=result.id, eta=eta, delivery_info={"redelivered": False})
    assert messages.succeeded_before(t, request) is known


def test_a_message_that_has_waited_for_its_locks_remembers_when_it_was_due(local_app):
    a = local_app()
    t = a.task()
    result = t.delay(1)
    a.run_next()
    eta = datetime.now(timezone.utc) + timedelta(seconds=30)
    request = SimpleNamespace(id=result.id, eta=eta.isoformat(), delivery_info={})
    assert not messages.succeeded_before(t, request, waited=20)
    assert messages.succeeded_before(t, request, waited=60)


@pytest.mark.parametrize(
    "task_id",
    ["invoice-7", "71d5830c-ec21-11f1-ac74-02fc00000001", str(uuid.uuid5(uuid.NAMESPACE_DNS, "x"))],
    ids=["words", "version 1", "version 5"],
)
def test_an_id_that_a_program_chose_may_have_been_used_before(local_app, task_id):
    """Its old result must not end the new task unseen."""
    a = local_app()
    t = a.task()
    t.apply_async((1,), task_id=task_id)
    a.run_next()
    assert not messages.succeeded_before(t, redelivered(task_id))


def test_a_result_backend_that_fails_ends_nothing(local_app, monkeypatch):
    a = local_app()
    t = a.task()

    def refuse(*_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(a.app.backend, "get_task_meta", refuse)
    assert not messages.succeeded_before(t, redelivered(str(uuid.uuid4())))
    assert a.dedupe._state_of("id", 0) is None
