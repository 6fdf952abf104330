"""What a worker answers to ``celery inspect dedupe``."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker import state as worker_state
from celery.worker.control import Panel

from celery_dedupe.core.asks import Attempt, BeginAsk
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.core.spelling import digest
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.inspection import ABSENT

pytestmark = pytest.mark.usefixtures("only_own_tasks")

NODE = "w1@unit"


def inspect(app):
    queues = [SimpleNamespace(name=name) for name in ("b", "a")]
    state = SimpleNamespace(
        app=app, hostname=NODE, consumer=SimpleNamespace(task_consumer=SimpleNamespace(queues=queues))
    )
    reply = Panel.data["dedupe"](state)
    json.dumps(reply)
    return reply


@pytest.fixture
def a(local_app):
    a = local_app({"t": "until_finished"})
    a.task()
    a.task(name="free")
    return a


@pytest.fixture
def active():
    """``active(request)``: a child of the pool runs it."""
    yield worker_state.active_requests.add
    worker_state.active_requests.clear()


def test_celery_lists_it_among_the_inspect_commands(a):
    assert Panel.meta["dedupe"].type == "inspect"
    assert Panel.meta["dedupe"].help == "What celery-dedupe holds here, and by which rules."


def test_a_worker_at_rest(a):
    before = time.time()
    reply = inspect(a.app)
    assert before <= reply.pop("clock") <= time.time()
    assert reply == {
        "version": "0.1.0",
        "mode": "enforce",
        "digest": digest(RuleSet({"t": "until_finished"})),
        "prefix": "dedupe",
        "store": "a client of the app's own",
        "tasks": ["free", "t"],
        "breaker": "closed",
        "queues": ["a", "b"],
        "messages": 0,
        "leases": [],
    }


def test_a_password_stays_where_it_is(local_app):
    a = local_app({"t": "once"}, client=None, url="redis://me:secret@127.0.0.1:1/3")
    assert inspect(a.app)["store"] == "redis://me:***@127.0.0.1:1/3"


def test_an_app_without_the_extension():
    """Two apps in one process: the command is there, and not for this one."""
    assert inspect(Celery("bare", set_as_current=False)) == {"error": ABSENT}


def test_a_run_in_this_process(a, active):
    """Threads, greenlets, solo: named once, though the store knows of it too."""
    seen = []

    def body(*_):
        (request,) = a.dedupe._endings.received()
        active(request)
        seen.append(inspect(a.app))

    b = a.task(body, name="t2", dedupe="while_running")
    result = b.delay(1)
    a.run_next()
    ((lease,),) = [reply["leases"] for reply in seen]
    assert lease.pop("expires_in") == pytest.approx(60, abs=5)
    assert lease.pop("fence") > 0
    assert lease.pop("key").startswith("dedupe:t2:")
    assert lease == {"task": "t2", "task_id": result.id}
    assert inspect(a.app)["leases"] == []


@pytest.mark.parametrize("ticket", [True, False])
def test_a_run_in_a_child_process(a, active, ticket):
    """Only the store and the child know of it."""
    result = a.app.tasks["t"].delay(1)
    ((key, _),) = a.store.scan("*")
    (message,) = a.messages()
    if not ticket:
        message.headers.pop("dedupe")
    request = a.receive(message)
    assert inspect(a.app)["messages"] == 1
    a.store.begin([BeginAsk(key, slot=True, lease=60_000)], Attempt(result.id, "tok", node=NODE))
    assert inspect(a.app)["leases"] == [], "it has not been handed to a child"
    active(request)
    (lease,) = inspect(a.app)["leases"]
    (run,) = a.store.read(key).running
    assert lease.pop("expires_in") == pytest.approx(60, abs=1)
    assert lease == {"key": key, "task": "t", "task_id": result.id, "fence": run.fence}


def test_a_run_of_the_same_task_elsewhere_is_not_held_here(a, active):
    result = a.app.tasks["t"].delay(1)
    ((key, _),) = a.store.scan("*")
    request = a.receive(a.messages()[0])
    active(request)
    a.store.begin([BeginAsk(key, slot=True, lease=60_000)], Attempt(result.id, "tok", node="another@unit"))
    assert inspect(a.app)["leases"] == []


def test_a_store_that_is_away_shows_as_an_open_breaker(a, monkeypatch):
    def away():
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(a.store, "clock", away)
    reply = inspect(a.app)
    assert (reply["breaker"], reply["leases"]) == ("open", [])


def test_mode_off(local_app):
    a = local_app({"t": "until_finished"}, mode="off")
    a.task()
    reply = inspect(a.app)
    assert (reply["mode"], reply["leases"], reply["breaker"]) == ("off", [], "closed")


def test_it_changes_nothing(a):
    a.app.tasks["t"].delay(1)
    a.store.calls.clear()
    before = dict(a.store.scan("*"))
    inspect(a.app)
    assert (a.store.calls, dict(a.store.scan("*"))) == ([], before)
