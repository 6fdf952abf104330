"""A message that is delivered again: one body at a time, one good end, and no copy that loops or vanishes."""

from __future__ import annotations

import celery
import pytest
from celery import Task
from celery.signals import task_postrun

from celery_dedupe import duplicate_of
from celery_dedupe.core.locks import LOCKS
from tests.apps.families import note_events
from tests.apps.jobs import Flaky
from tests.apps.locks import call, define_by_lock, rules
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# The other two promise nothing for the time after a start.
KEPT_APART = [lock for lock, traits in LOCKS.items() if traits.runs]


def define(under_test):
    define_by_lock(under_test)
    note_events(under_test)


def define_slow_ends(under_test):
    """``until_started.hurries``: its retry has come and gone before its first run has ended."""
    ledger = under_test.ledger

    class Slow(Task):
        def on_retry(self, exc, task_id, args, kwargs, einfo):
            wait_until(lambda: ledger.notes("postrun", "FAILURE"))

    @under_test.app.task(name="until_started.hurries", base=Slow, bind=True, max_retries=1, shared=False)
    def hurries(self, key):
        with ledger.run(self.name, key, self.request.id, self.request.retries):
            raise self.retry(exc=Flaky(key), countdown=0)

    @task_postrun.connect(sender=hurries, weak=False)
    def note(state, **_):  # after the extension, which is the first to hear of it
        ledger.note("postrun", state)


class Broker:
    """An app on Redis whose messages come again after ``visible`` seconds, and a look at what is in there."""

    def __init__(self, make_app, valkey, visible, **options):
        # From Celery 5.7 on workers look for such messages as often as they are told; before, too seldom.
        transport = {
            "visibility_timeout": visible,
            "unacked_restore_interval": 0.5,
            "unacked_restore_throttle": 1,
            # A worker that is cut off or killed while it looks leaves this mutex, and for 5 min nobody looks.
            "unacked_mutex_expire": 2,
        }
        self.under_test = make_app(
            rules(lease=2), setup=define, conf={"broker_transport_options": transport}, **options
        )
        self.app, self.ledger = self.under_test.app, self.under_test.ledger
        self.redis = valkey.client(0)

    def drained(self):
        """Nothing is queued; nothing unacknowledged, as far as the broker tells."""
        with self.app.connection_for_read() as connection:
            if connection.transport.driver_type == "redis":
                return not self.redis.llen(self.under_test.queue) and not self.redis.hlen("unacked")
            queue = connection.default_channel.queue_declare(self.under_test.queue, passive=True)
            return not queue.message_count

    def redeliver(self):
        """What workers on Redis do now and then: puts back what nobody has acknowledged for too long."""
        with self.app.connection_for_read() as connection:
            if connection.transport.driver_type == "redis":
                connection.default_channel.qos.restore_visible(num=100, interval=1)

    def until(self, condition, timeout=40, message=""):
        def met():
            self.redeliver()
            return condition()

        return wait_until(met, timeout, message or (lambda: str(self.ledger)), interval=0.25)


def decisions(ledger, task_id):
    return [note["decision"] for note in ledger.notes("refused", task_id)]


def test_a_long_task_is_redelivered_while_it_runs(make_app, workers, valkey, ledger):
    broker = Broker(make_app, valkey, visible=2)
    tail = broker.app.tasks["jobs.append"]
    first = workers(broker.under_test, concurrency=8)
    ends = {}
    for lock in KEPT_APART:
        head = broker.app.tasks[f"{lock}.late_slow"].s(lock, 8)
        ends[lock] = (head | tail.s(f"tail of {lock}")).apply_async()
    ledger.wait_for(len(KEPT_APART), ended=False)
    second = workers(broker.under_test, concurrency=8)

    broker.until(lambda: all(end.ready() for end in ends.values()) and broker.drained())

    for lock, end in ends.items():
        assert end.get(timeout=1) == [lock, f"tail of {lock}"]
        (run,) = ledger.runs(lock)
        assert run.outcome == "ok"
        assert len(ledger.runs(f"tail of {lock}")) == 1, f"the chain of {lock} goes on once"
        first_word, *_, last_word = decisions(ledger, run.task_id)
        assert (first_word, last_word) == ("wait", "quiet"), f"{lock}: the copy ends when the first one has"
    assert first.alive
    assert second.alive


def test_a_task_with_an_eta_beyond_the_visibility_timeout_runs_once(make_app, workers, valkey, ledger):
    broker = Broker(make_app, valkey, visible=1)
    for _ in range(2):
        workers(broker.under_test, concurrency=4)
    results = {lock: call(broker.app, lock, "quick", lock, countdown=6) for lock in KEPT_APART}

    broker.until(lambda: all(result.ready() for result in results.values()) and broker.drained())

    assert {lock: result.get(timeout=1) for lock, result in results.items()} == {
        lock: lock for lock in KEPT_APART
    }
    assert {lock: len(ledger.runs(lock)) for lock in KEPT_APART} == dict.fromkeys(KEPT_APART, 1)


def test_the_first_copy_of_a_task_with_an_eta_may_start_last(make_app, workers, valkey, ledger):
    broker = Broker(make_app, valkey, visible=1)
    away = workers(broker.under_test)
    results = {lock: call(broker.app, lock, "quick", lock, countdown=4) for lock in KEPT_APART}
    for result in results.values():
        away.wait_for_log(f"[{result.id}] received")
    away.pause()
    workers(broker.under_test)
    broker.until(lambda: all(result.ready() for result in results.values()))

    away.resume()

    broker.until(broker.drained)
    for lock, result in results.items():
        away.wait_for_log(f"[{result.id}] quiet: another delivery of this message has ended well")
        assert len(ledger.runs(lock)) == 1, lock


def test_a_retry_and_the_redelivery_of_its_first_attempt_run_one_after_the_other(
    make_app, workers, valkey, ledger
):
    broker = Broker(make_app, valkey, visible=2)
    workers(broker.under_test, concurrency=4)
    results = {lock: call(broker.app, lock, "late_retries", lock) for lock in KEPT_APART}
    ledger.wait_for(len(KEPT_APART), ended=False)
    workers(broker.under_test, concurrency=4)
    broker.until(lambda: all("wait" in decisions(ledger, result.id) for result in results.values()))

    ledger.open_gate("gate")  # the first attempts send their retries, while copies of them wait

    broker.until(lambda: all(result.ready() for result in results.values()) and broker.drained())
    for lock, result in results.items():
        assert result.get(timeout=1) == lock
        assert [(run.attempt, run.outcome) for run in ledger.runs(lock)] == [(0, "Retry"), (1, "ok")], lock
        assert "quiet" in decisions(ledger, result.id), "a late copy of the first attempt runs no more"
    assert not ledger.overlaps()


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.services)])
def test_another_worker_takes_over_with_a_higher_fence(make_app, workers, valkey, ledger, kind, request):
    options = {"broker": request.getfixturevalue("rabbitmq_url")} if kind == "rabbitmq" else {}
    broker = Broker(make_app, valkey, visible=1, **options)
    owner = workers(broker.under_test, concurrency=4)
    results = {lock: call(broker.app, lock, "late_held", lock) for lock in KEPT_APART}
    ledger.wait_for(len(KEPT_APART), ended=False)

    owner.kill()
    ledger.open_gate("gate")
    workers(broker.under_test, concurrency=4)

    broker.until(lambda: all(result.ready() for result in results.values()) and broker.drained())
    for lock, result in results.items():
        assert result.get(timeout=1) == lock
        assert [run.outcome for run in ledger.runs(lock)] == [None, "ok"], lock
        first, second = (note["fence"] for note in ledger.notes("fence", lock))
        assert first < second
    assert not ledger.overlaps()


# With or without the extension: what is received after a lost connection starts when the running tasks end.
STUCK = pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery before 5.7 starts no copy of what runs")


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=[pytest.mark.services, STUCK])])
def test_a_connection_lost_during_the_body_brings_a_copy_that_waits(
    make_app, workers, valkey, ledger, start_proxy, kind, request
):
    line = start_proxy(request.getfixturevalue("rabbitmq_url") if kind == "rabbitmq" else valkey.url(0))
    broker = Broker(make_app, valkey, visible=2, broker=line.url)
    tail = broker.app.tasks["jobs.append"]
    worker = workers(broker.under_test, concurrency=8)
    ends = {
        lock: (broker.app.tasks[f"{lock}.late_held"].s(lock) | tail.s(f"tail of {lock}")).apply_async()
        for lock in KEPT_APART
    }
    ids = {run.key: run.task_id for run in ledger.wait_for(len(KEPT_APART), ended=False)}

    line.cut()
    broker.until(lambda: all("wait" in decisions(ledger, ids[lock]) for lock in KEPT_APART))
    ledger.open_gate("gate")

    broker.until(lambda: all(end.ready() for end in ends.values()) and broker.drained())
    for lock, end in ends.items():
        assert end.get(timeout=1) == [lock, f"tail of {lock}"]
        assert [run.outcome for run in ledger.runs(lock)] == ["ok"], lock
        assert len(ledger.runs(f"tail of {lock}")) == 1, f"the chain of {lock} goes on once"
        wait_until(lambda lock=lock: decisions(ledger, ids[lock])[-1] == "quiet", 20)
    assert worker.alive


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.services)])
def test_a_connection_lost_between_the_body_and_its_acknowledgement(
    make_app, workers, valkey, ledger, start_proxy, kind, request
):
    line = start_proxy(request.getfixturevalue("rabbitmq_url") if kind == "rabbitmq" else valkey.url(0))
    broker = Broker(make_app, valkey, visible=2, broker=line.url)
    worker = workers(broker.under_test, concurrency=6)
    results = {lock: call(broker.app, lock, "late_held", lock) for lock in LOCKS}
    ledger.wait_for(len(LOCKS), ended=False)

    line.refuse()
    worker.wait_for_log("Connection to broker lost")
    ledger.open_gate("gate")
    for lock, result in results.items():
        assert result.get(timeout=10) == lock
    line.restore()
    # Celery 5.7 gives up if it loses Redis while it holds messages.
    workers(broker.under_test)

    for result in results.values():
        broker.until(lambda result=result: "quiet" in decisions(ledger, result.id))
    broker.until(broker.drained)
    for lock in LOCKS:
        assert [run.outcome for run in ledger.runs(lock)] == ["ok"], lock


def test_a_retry_that_ends_before_the_run_that_sent_it_leaves_no_claim(make_app, workers, ledger):
    app = make_app(rules(), setup=define_slow_ends)
    workers(app, pool="threads")
    hurries = app.app.tasks["until_started.hurries"]
    hurries.delay("a")

    wait_until(lambda: ledger.notes("postrun", "RETRY"))

    assert [note["key"] for note in ledger.notes("postrun")] == ["FAILURE", "RETRY"]
    assert duplicate_of(hurries.delay("a")) is None
