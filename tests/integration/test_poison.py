"""A message that kills every process it runs in is stopped, and everybody who waits for it is told."""

from __future__ import annotations

import os
import signal

import pytest
from celery import Task
from celery.exceptions import Reject

from celery_dedupe import DeliveryLimitExceeded
from tests.apps.families import note_events
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

LATE = {"bind": True, "acks_late": True, "reject_on_worker_lost": True}
RULES = {
    "poison.*": {"lock": "until_finished", "key": ["key"], "scope": "p", "lease": "1s", "max_deliveries": 2},
}


def define(under_test):
    app, ledger = under_test.app, under_test.ledger
    note_events(under_test)

    class Told(Task):
        def on_failure(self, exc, task_id, args, kwargs, einfo):
            ledger.note("on_failure", task_id, error=type(exc).__name__)

    def poison(**options):
        return lambda body: app.task(
            name=f"poison.{body.__name__}", base=Told, shared=False, **{**LATE, **options}
        )(body)

    @poison()
    def kills(self, key):
        """What the kernel does to a process that wants more memory than there is."""
        with ledger.run(self.name, key, self.request.id):
            os.kill(os.getpid(), signal.SIGKILL)

    @poison()
    def rejects(self, key):
        with ledger.run(self.name, key, self.request.id):
            raise Reject("not today", requeue=True)

    @poison(max_retries=4)
    def retries_and_is_killed_once(self, key):
        with ledger.run(self.name, key, self.request.id, self.request.retries):
            if self.request.retries == 2 and len(ledger.runs(key)) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.request.retries < 4:
                raise self.retry(countdown=0)
            return key


def drained(under_test):
    """Nothing is queued, and nothing unacknowledged that a dead worker would leave."""
    with under_test.app.connection_for_read() as connection:
        channel = connection.default_channel
        if connection.transport.driver_type == "redis":
            return not channel.client.llen(under_test.queue) and not channel.client.hlen("unacked")
        return not channel.queue_declare(under_test.queue, passive=True).message_count


def nothing_left(under_test):
    return not dict(under_test.dedupe.guard.store.scan("dedupe:*"))


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.services)])
def test_a_task_that_kills_its_process_stops_after_so_many_deliveries(
    make_app, workers, ledger, kind, request
):
    options = {"broker": request.getfixturevalue("rabbitmq_url")} if kind == "rabbitmq" else {}
    app = make_app(RULES, setup=define, **options)
    worker = workers(app)
    tail = app.tasks.append.s("tail").on_error(app.tasks.record_error.s(key="errback"))
    head = app.app.tasks["poison.kills"].s("a").on_error(app.tasks.record_error.s(key="errback"))
    end = (head | tail).apply_async()
    result = end.parent

    with pytest.raises(DeliveryLimitExceeded) as caught:
        result.get(timeout=60)

    assert caught.value.args == ("poison.kills", result.id, 3, 2)
    assert result.state == "FAILURE"
    assert [run.outcome for run in ledger.runs("a")] == [None, None]
    (note,) = (note for note in ledger.notes("refused", result.id) if note["decision"] == "poison")
    assert note["reason"] == "delivered 3 times, and max_deliveries is 2"
    worker.wait_for_log(f"poison.kills[{result.id}] poison: {note['reason']}")
    wait_until(lambda: [n["error"] for n in ledger.notes("error")] == ["DeliveryLimitExceeded"], 20)
    assert [note["error"] for note in ledger.notes("on_failure")] == ["DeliveryLimitExceeded"]
    assert not ledger.runs("tail")
    wait_until(lambda: drained(app), 20)
    wait_until(lambda: nothing_left(app), 20)
    assert worker.alive


def test_a_message_that_is_rejected_again_and_again_stops_too(make_app, workers, ledger):
    app = make_app(RULES, setup=define)
    workers(app)

    result = app.app.tasks["poison.rejects"].delay("a")

    with pytest.raises(DeliveryLimitExceeded):
        result.get(timeout=60)
    assert [run.outcome for run in ledger.runs("a")] == ["Reject", "Reject"]
    wait_until(lambda: drained(app) and nothing_left(app), 20)


def test_retries_are_other_messages_and_one_kill_is_no_poison(make_app, workers, ledger):
    app = make_app(RULES, setup=define)
    workers(app)

    result = app.app.tasks["poison.retries_and_is_killed_once"].delay("a")

    assert result.get(timeout=60) == "a"
    attempts = [(run.attempt, run.outcome) for run in ledger.runs("a")]
    assert attempts == [(0, "Retry"), (1, "Retry"), (2, None), (2, "Retry"), (3, "Retry"), (4, "ok")]
    wait_until(lambda: drained(app) and nothing_left(app), 20)
