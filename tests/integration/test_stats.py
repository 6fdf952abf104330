"""What is counted is the whole cluster's, and exact after a shutdown in good order."""

from __future__ import annotations

import json
import socket
import urllib.request
from contextlib import suppress

import pytest

from tests.apps import tracing
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

RULES = {
    "jobs.quick": {"lock": "until_finished", "key": ["key"]},
    "jobs.held": {"lock": "while_running", "key": ["key"]},
    "jobs.retries": "queue_and_run",
    "jobs.kill_self": {"lock": "until_finished"},
}
PUBLISHER = """
    import sys
    for key in range(20):
        for _ in range(3):
            tasks.quick.delay(f"{sys.argv[1]} {key}")
"""
FORKING = """
    import os, sys
    tasks.quick.delay("parent")
    child = os.fork()
    tasks.quick.delay("child" if not child else "parent again")
    if child:
        assert os.waitpid(child, 0)[1] == 0
"""


def counted(app):
    """What the store was told, by the task and the word."""
    return app.dedupe.guard.store.counts("dedupe:stats")


def of(app, task):
    return {word: number for (name, word), number in counted(app).items() if name == task}


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("prefork", []),
        ("prefork", ["--max-tasks-per-child=3"]),
        ("threads", []),
        ("solo", []),
        ("gevent", []),
    ],
    ids=["prefork", "short-lived children", "threads", "solo", "gevent"],
)
def test_counts_are_exact_after_a_warm_shutdown(make_app, workers, ledger, pool, options):
    app = make_app(RULES, stats=True)
    publishers = [workers.python(app, PUBLISHER, name) for name in "ab"]
    assert [program.output for program in publishers] == ["", ""]
    assert of(app, "jobs.quick") == {"published": 40, "dropped": 80}, "a program tells all before it ends"

    worker = workers(app, *options, pool=pool, concurrency=3 if pool != "solo" else 1)
    app.tasks.retries.delay("r", failures=2)
    ledger.wait_for(43)
    worker.stop()

    app.dedupe.guard.counters.flush()
    assert of(app, "jobs.quick") == {"published": 40, "dropped": 80, "started": 40}
    retried = of(app, "jobs.retries")
    retried.pop("waited", 0)  # A retry may come before the run that sent it has quite ended.
    assert retried == {"published": 1, "started": 3}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_refused_starts_are_counted(make_app, workers, ledger, pool):
    app = make_app(RULES)
    worker = workers(app, pool=pool, concurrency=4)
    app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    second = [app.tasks.held.delay("a") for _ in range(5)]
    for result in second:
        worker.wait_for_log(f"[{result.id}] ignored")
    ledger.open_gate("gate")
    ledger.wait_for(1, "a")
    worker.stop()

    app.dedupe.guard.counters.flush()
    assert of(app, "jobs.held") == {"published": 6, "started": 1, "skipped": 5}


def test_a_worker_tells_its_counts_while_it_lives(make_app, workers, ledger):
    app = make_app(RULES)
    workers(app, concurrency=1)
    app.tasks.quick.delay("a")
    wait_until(lambda: of(app, "jobs.quick") == {"published": 1, "started": 1}, 60)


def test_a_forked_publisher_tells_what_is_its_own(make_app, workers):
    app = make_app(RULES)
    assert workers.python(app, FORKING).output == ""
    assert of(app, "jobs.quick") == {"published": 3}


def test_counts_wait_for_a_store_that_is_away(make_app, start_valkey, workers, ledger):
    store = start_valkey()
    app = make_app(RULES, url=store.store_url)
    worker = workers(app, concurrency=2)
    store.kill()
    results = [app.tasks.quick.delay(f"{key}") for key in range(5)]
    assert [result.get(timeout=30) for result in results] == [f"{key}" for key in range(5)]
    store.start()
    wait_until(lambda: of(app, "jobs.quick").get("started") == 5, 60)
    worker.stop()

    app.dedupe.guard.counters.flush()
    assert of(app, "jobs.quick") == {"published": 5, "started": 5, "unprotected": 10}


def test_observe_says_what_would_have_been_dropped(make_app, workers, ledger):
    app = make_app(RULES, mode="observe")
    worker = workers(app, concurrency=3)
    app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    results = [app.tasks.quick.apply_async(("b",), countdown=1) for _ in range(4)]
    app.tasks.held.delay("a", gate="other")
    ledger.wait_for(2, "a", ended=False)
    for result in results:
        assert result.get(timeout=30) == "b"
    ledger.open_gate("gate")
    ledger.open_gate("other")
    ledger.wait_for(2, "a")
    worker.stop()

    app.dedupe.guard.counters.flush()
    assert of(app, "jobs.quick") == {"published": 4, "started": 4, "would_drop": 3}
    assert of(app, "jobs.held") == {"published": 2, "started": 2, "would_skip": 1}


def test_what_is_stored_holds_no_argument_and_ends_by_itself(make_app, valkey, workers):
    app = make_app(RULES)
    workers.python(app, "tasks.quick.delay('a secret')").output  # noqa: B018 - waits for its end
    names = valkey.client().keys("dedupe:stats:*")
    assert len(names) == 2
    assert all(valkey.client().pttl(name) > 0 for name in names)
    assert "secret" not in json.dumps([valkey.client().hgetall(name) for name in names])


def test_the_command_tells_of_the_whole_cluster(make_app, workers, ledger):
    app = make_app(RULES)
    workers.python(app, PUBLISHER, "a").output  # noqa: B018 - waits for its end
    two = [workers(app, concurrency=1) for _ in range(2)]
    ledger.wait_for(20)
    for worker in two:
        worker.stop()

    done = workers.celery(app, "dedupe", "stats", "--json")

    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["task"], task["published"], task["dropped"], task["started"]) == ("jobs.quick", 20, 40, 20)
    assert task["saved"] == pytest.approx(2 / 3)


EXPORTER = """
    import runpy, sys
    sys.argv.insert(1, "tests.apps.basic")
    runpy.run_path("examples/monitoring/exporter.py")
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def scrape(port):
    """What the exporter says, once it listens."""

    def answer():
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply,
        ):
            return reply.read().decode()
        return None

    return wait_until(answer, 30)


def test_one_exporter_tells_of_the_whole_cluster(make_app, start_valkey, workers, ledger):
    store = start_valkey()
    app = make_app(RULES, url=store.store_url)
    workers.python(app, PUBLISHER, "a").output  # noqa: B018 - waits for its end
    two = [workers(app, pool=pool, concurrency=2) for pool in ("prefork", "threads")]
    ledger.wait_for(20)
    for worker in two:
        worker.stop()
    port = free_port()
    workers.python(app, EXPORTER, str(port))

    said = scrape(port)

    for verdict, number in {"published": 20, "dropped": 40, "started": 20, "unprotected": 0}.items():
        line = f'celery_dedupe_verdicts_total{{task="jobs.quick",verdict="{verdict}"}} {number}.0'
        assert line in said.splitlines()
    assert "celery_dedupe_store_up 1.0" in said
    store.kill()
    assert "celery_dedupe_store_up 0.0" in scrape(port)


TRACED = """
    from opentelemetry import trace
    tracer = trace.get_tracer("web")
    for name in ("first click", "second click"):
        with tracer.start_as_current_span(name):
            tasks.quick.delay("a")
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_trace_tells_of_a_duplicate_and_leads_to_what_is_in_its_way(make_app, workers, ledger, pool):
    app = make_app(RULES, setup=tracing.install)
    env = {tracing.TRACER: "verdicts"}
    assert workers.python(app, TRACED, env=env).output == ""
    worker = workers(app, pool=pool, concurrency=1, env=env)
    (run,) = ledger.wait_for(1, "a")
    worker.stop()

    spans = {note["key"]: note for note in ledger.notes("span")}
    first, second, ran = spans["first click"], spans["second click"], spans["run/jobs.quick"]
    assert first["attributes"] == {"celery_dedupe.publish": "published"}
    assert second["attributes"] == {
        "celery_dedupe.publish": "dropped",
        "celery_dedupe.duplicate_of": run.task_id,
    }
    assert ran["attributes"] == {"celery_dedupe.start": "started"}
    assert second["links"] == [first["trace"]] == [ran["trace"]]
    assert second["trace"] != first["trace"]
