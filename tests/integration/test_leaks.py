"""What is dropped or refused leaves nothing behind: no subscription, result, connection or open span."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter
from textwrap import dedent

import pytest

from celery_dedupe import DuplicateTask, duplicate_of
from tests.apps import tracing
from tests.harness.servers import BACKEND, BROKER, STORE
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DROPS = 1000
CALLS = [
    ["jobs.quick", ["a", "b"]],
    ["jobs.autoretries", ["a"]],
    ["jobs.record_error", ["a", "b", "c"]],
]


def connections(server):
    """How many the server has open, by database."""
    return Counter(int(client["db"]) for client in server.client().client_list())


def channels(server):
    """Who listens to which channel."""
    client = server.client(BACKEND)
    names = client.pubsub_channels()
    return dict(client.pubsub_numsub(*names)) if names else {}


def pending(app):
    backend = app.app.backend
    return [sorted(mapping) for mapping in backend._pending_results], sorted(
        backend.result_consumer.subscribed_to
    )


@pytest.mark.parametrize("on_duplicate", ["existing", "none", "raise"])
def test_dropped_publishes_leave_results_and_connections_as_they_were(make_app, valkey, on_duplicate):
    app = make_app({"jobs.quick": {"lock": "until_finished", "on_duplicate": on_duplicate}})

    def drop():
        try:
            return app.tasks.quick.delay("a")
        except DuplicateTask as error:
            return error

    kept = [drop(), drop()]
    wait_until(lambda: kept[0].id in str(channels(valkey)), message="Celery listens for its result")
    before = channels(valkey), pending(app), connections(valkey)

    kept += [drop() for _ in range(DROPS)]

    wait_until(lambda: channels(valkey) == before[0], message=lambda: f"{len(channels(valkey))}")
    assert pending(app) == before[1]
    assert not connections(valkey) - before[2]  # there may be fewer: those of the test before were closing
    assert valkey.client(BROKER).llen(app.queue) == 1
    assert len(kept) == DROPS + 2


def test_a_duplicate_thrown_away_leaves_those_who_wait_for_the_first_result(make_app, workers, ledger):
    """Before Celery 5.7 the garbage of any result of an id ends the wait of all."""
    app = make_app({"jobs.held": "until_finished"})
    workers(app, concurrency=1)
    first = app.tasks.held.delay("a")
    got = []
    waiter = threading.Thread(target=lambda: got.append(first.get(timeout=30)))
    waiter.start()
    wait_until(lambda: first.id in app.app.backend._pending_results.concrete)

    for _ in range(3):
        assert duplicate_of(app.tasks.held.delay("a")).task_id == first.id
    gc.collect()
    ledger.open_gate("gate")

    waiter.join()
    assert got == ["a"]


def test_connections_do_not_grow_over_5000_publishes(make_app, valkey):
    app = make_app({"jobs.quick": {"lock": "until_finished", "key": ["key"]}})
    crew, rounds = 8, 5
    line = threading.Barrier(crew)

    def publish():
        for number in range(rounds):
            line.wait()
            for call in range(125):
                app.tasks.quick.delay(f"{number} {call}")

    threads = [threading.Thread(target=publish) for _ in range(crew)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert valkey.client(BROKER).llen(app.queue) == rounds * 125
    assert connections(valkey)[STORE] <= crew + 2, "one a thread, that of the counts, and the test's own"
    # Celery's own pools grow with the threads that happen to publish at once, never with the calls.
    assert connections(valkey).total() <= 6 * crew


def traced(tracer):
    """The environment of a process with that tracer."""
    return {tracing.TRACER: tracer}


def open_spans(ledger):
    """Names of spans that were started and not ended, and how many."""
    started = Counter(note["key"] for note in ledger.notes("span started"))
    started.subtract(note["key"] for note in ledger.notes("span ended"))
    return +started


# Whether the tracer was there before the extension: where it was not, the program installs it itself.
ORDERS = {"tracer first": "", "extension first": "tracing.TRACERS[sys.argv[2]](basic.under_test)"}

PROGRAM = """
    import json, sys
    from celery_dedupe import duplicate_of
    from tests.apps import basic, tracing
    {install}

"""
DROPPING = """
    from opentelemetry import trace

    published = []
    for _ in range(int(sys.argv[1])):
        published.append(tasks.quick.delay("a"))
        assert not trace.get_current_span().is_recording()
    assert len({result.id for result in published}) == 1
"""
TRANSACTION = """
    import sentry_sdk

    found = []
    with sentry_sdk.start_transaction(name="publishing") as transaction:
        for name, args in json.loads(sys.argv[1]):
            for publish in (app.tasks[name].delay, lambda *args: app.send_task(name, args)):
                for _ in range(2):
                    found.append(duplicate_of(publish(*args)))
                    assert sentry_sdk.get_current_span() is transaction
    print(json.dumps([one and one.key for one in found]))
"""


@pytest.fixture(params=ORDERS)
def run_traced(request, workers):
    """Runs a program in which that tracer and the extension are installed, in either order."""

    def run(app, source, argument, tracer):
        env = traced(tracer) if request.param == "tracer first" else {}
        program = dedent(PROGRAM).format(install=ORDERS[request.param]) + dedent(source)
        return workers.python(app, program, argument, tracer, env=env).output

    return run


def test_dropped_publishes_leave_no_span_open(make_app, run_traced, ledger):
    app = make_app({"jobs.quick": "until_finished"}, setup=tracing.install)

    run_traced(app, DROPPING, str(DROPS + 1), "opentelemetry")

    assert [note["key"] for note in ledger.notes("span started")] == ["apply_async/jobs.quick"]
    assert not open_spans(ledger)


def test_sentry_changes_no_key_and_has_no_span_left(make_app, run_traced, ledger):
    app = make_app({"jobs.*": "until_finished"}, setup=tracing.install)

    found = json.loads(run_traced(app, TRANSACTION, json.dumps(CALLS), "sentry").splitlines()[-1])

    ours = [duplicate_of(app.app.tasks[name].delay(*args)).key for name, args in CALLS]
    assert found == [key for one in ours for key in (None, one, one, one)]
    (transaction,) = ledger.notes("transaction")
    spans = Counter(operation for operation, _ in transaction["spans"])
    assert spans["queue.publish"] == len(CALLS)
    # Sentry opens one for each delay, and one for each send_task of Celery: a duplicate reaches none.
    assert spans["queue.submit.celery"] == len(CALLS) * (2 + 1)
    assert all(ended for _, ended in transaction["spans"])


@pytest.mark.parametrize("on_conflict", ["skip", "wait", "raise"])
def test_refused_runs_leave_no_span_open(make_app, workers, ledger, on_conflict):
    policy = {"lock": "while_running", "key": ["key"], "on_conflict": on_conflict}
    app = make_app({"jobs.held": policy}, setup=tracing.install)
    worker = workers(app, env=traced("opentelemetry"))
    app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)

    second = app.tasks.held.delay("a")
    worker.wait_for_log(f"[{second.id}] {on_conflict}")
    ledger.open_gate("gate")
    if on_conflict == "wait":
        ledger.wait_for(2)
    assert worker.stop() == 0

    assert len(ledger.notes("span started", "run/jobs.held")) == (3 if on_conflict == "wait" else 2)
    assert not open_spans(ledger)


@pytest.mark.parametrize("tracer", ["sentry", "sentry_late"])
def test_a_worker_with_sentry_runs_under_the_locks_of_those_without(
    make_app, valkey, workers, ledger, tracer
):
    rules = {"jobs.autoretries": {"lock": "until_finished"}, "jobs.held": {"lock": "until_finished"}}
    app = make_app(rules, setup=tracing.install)
    worker = workers(app, env=traced(tracer))
    store = app.dedupe.guard.store
    app.tasks.held.apply_async(("a",), dedupe={"key": "named by the call"})
    ledger.wait_for(1, ended=False)

    ((key, record),) = store.scan("dedupe:*")
    assert len(record.running) == 1
    assert record.running[0].nonce, "the worker has read the ticket in the message"
    assert duplicate_of(app.tasks.held.apply_async(("b",), dedupe={"key": "named by the call"})).key == key
    ledger.open_gate("gate")

    assert app.tasks.autoretries.delay("c", failures=2).get(timeout=15) == "c"
    assert [run.attempt for run in ledger.runs("c")] == [0, 1, 2]
    wait_until(lambda: not list(store.scan("dedupe:*")))
    assert worker.stop() == 0
    assert len(ledger.notes("transaction", "jobs.autoretries")) == 3


def test_a_refused_run_ends_its_transaction_and_is_no_error(make_app, workers, ledger):
    app = make_app({"jobs.held": {"lock": "while_running", "key": []}}, setup=tracing.install)
    worker = workers(app, env=traced("sentry"))
    app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)

    refused = app.tasks.held.delay("b")
    worker.wait_for_log(f"[{refused.id}] ignored")
    ledger.open_gate("gate")
    assert worker.stop() == 0

    assert len(ledger.notes("transaction", "jobs.held")) == 2
    assert all(ended for note in ledger.notes("transaction") for _, ended in note["spans"])
    assert not ledger.notes("error reported")
