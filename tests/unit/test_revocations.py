"""A revoked message whose time has not come gives its claim back at the worker's next heartbeat (Case 3)."""

from __future__ import annotations

from typing import Any

import pytest
from celery.worker import state as worker_state
from celery.worker.heartbeat import Heart

from celery_dedupe import duplicate_of
from tests.unit.conftest import NOTHING


@pytest.fixture(autouse=True)
def no_revocations():
    yield
    worker_state.revoked.clear()
    worker_state.revoked_stamps.clear()
    worker_state.active_requests.clear()


class Events:
    """What a worker's heart sends by."""

    enabled = True

    def __init__(self, app: Any) -> None:
        self.app = app
        self.on_enabled: set[Any] = set()
        self.on_disabled: set[Any] = set()

    def send(self, *args: Any, **fields: Any) -> None:
        pass


def beat(app: Any) -> None:
    Heart(None, Events(app))._send("worker-heartbeat")


def receive_later(a: Any, task: Any, **options: Any) -> Any:
    """The worker has the message and waits for its time."""
    task.s(1).set(task_id="id", countdown=600, **options).apply_async()
    return a.receive(a.messages()[-1])


def test_it_is_given_back_once_and_the_next_call_is_new(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    request = receive_later(a, t)
    beat(a.app)
    assert a.store.held() == {**NOTHING, "queued": ["id"]}

    worker_state.revoked.add("id")
    beat(a.app)

    assert a.store.held() == NOTHING
    assert duplicate_of(t.delay(1)) is None
    asked = list(a.store.calls)
    beat(a.app)
    assert a.store.calls == asked, "not asked again"
    assert request.id == "id", "it lives until now"


@pytest.mark.parametrize("revoked", ["a", ["b", "a"]])
@pytest.mark.parametrize("stamps", ["a", ["a", "c"]])
def test_so_it_is_by_a_stamp(local_app, revoked, stamps):
    a = local_app({"t": "until_finished"})
    t = a.task()
    signature = t.s(1).set(task_id="id", countdown=600)
    signature.stamp(batch=stamps)
    signature.apply_async()
    request = a.receive(a.messages()[-1])
    worker_state.revoked_stamps.update(other=stamps)
    beat(a.app)
    assert a.store.held() == {**NOTHING, "queued": ["id"]}

    worker_state.revoked_stamps.update(batch=revoked)
    beat(a.app)

    assert a.store.held() == NOTHING
    assert request.revoked(), "Celery says the same when its time has come"


def test_a_run_goes_on_and_keeps_what_it_holds(local_app):
    """A revocation without ``terminate`` does not stop what runs."""
    a = local_app({"t": {"lock": "until_expired", "period": "1h"}})
    request = receive_later(a, a.task())
    worker_state.active_requests.add(request)
    worker_state.revoked.add("id")

    beat(a.app)

    assert a.store.held() == {**NOTHING, "queued": ["id"]}


def test_another_apps_heart_says_nothing(local_app):
    a, b = local_app({"t": "until_finished"}), local_app({})
    request = receive_later(a, a.task())
    worker_state.revoked.add(request.id)

    beat(b.app)

    assert a.store.held() == {**NOTHING, "queued": ["id"]}
