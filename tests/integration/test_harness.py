"""The harness itself: what the other integration tests take for granted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from celery import chain, chord
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from tests.harness.commands import count_commands
from tests.harness.processes import ROOT, RUN_MARK, ProcessFailed, is_alive, processes_of_run
from tests.harness.servers import BROKER, STORE
from tests.harness.waiting import remains_true, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def make_plain_app(make_app):
    """Apps without the extension: the harness must not need it."""
    return lambda **options: make_app(install=False, **options)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_worker_of_each_pool_runs_a_task_and_stops_when_told(make_plain_app, workers, ledger, pool):
    app = make_plain_app()
    worker = workers(app, pool=pool)

    assert app.tasks.quick.delay("a", 7).get(timeout=30) == 7

    (run,) = ledger.wait_for(1, "a")
    assert (run.task, run.outcome, run.attempt) == ("jobs.quick", "ok", 0)
    assert worker.stop() == 0
    assert not worker.alive


def test_a_killed_child_ends_its_run_and_is_replaced(make_plain_app, workers, ledger):
    app = make_plain_app()
    worker = workers(app, concurrency=1)
    result = app.tasks.held.delay("a")
    (run,) = ledger.wait_for(1, "a", ended=False)
    assert worker.child_pids() == [run.pid]

    worker.kill_child(run.pid)

    with pytest.raises(WorkerLostError):
        result.get(timeout=30)
    assert app.tasks.quick.delay("a").get(timeout=30) == "a"
    first, second = ledger.runs("a")
    assert first.ended is None
    assert first.pid != second.pid
    assert not ledger.overlaps("a"), "a dead run holds no slot"
    with pytest.raises(ProcessFailed, match="no child of"):
        worker.kill_child(run.pid)


def test_a_late_acknowledged_task_comes_again_when_it_has_killed_its_process(make_plain_app, workers, ledger):
    app = make_plain_app(conf={"task_acks_late": True, "task_reject_on_worker_lost": True})
    workers(app, concurrency=1)

    assert app.tasks.kill_self.delay("a").get(timeout=30) == "a"

    first, second = ledger.runs("a")
    assert first.task_id == second.task_id
    assert (first.outcome, second.outcome) == (None, "ok")


def test_a_killed_worker_leaves_no_child_not_even_one_that_hangs_in_c(make_plain_app, workers, ledger):
    app = make_plain_app()
    worker = workers(app, concurrency=1)
    app.tasks.hang.delay("a")
    (run,) = ledger.wait_for(1, "a", ended=False)

    worker.kill()

    assert worker.exit_code == -signal.SIGKILL
    assert not is_alive(run.pid)


def test_a_hard_time_limit_ends_a_task_that_hangs_in_c(make_plain_app, workers, ledger):
    app = make_plain_app()
    workers(app, "--time-limit=1", concurrency=1)

    with pytest.raises(TimeLimitExceeded):
        app.tasks.hang.delay("a").get(timeout=30)


def test_a_paused_worker_does_nothing_until_it_is_resumed(make_plain_app, workers, ledger):
    app = make_plain_app()
    worker = workers(app)
    worker.pause()
    app.tasks.quick.delay("a")
    remains_true(lambda: not ledger.runs("a"), 0.5)

    worker.resume()

    ledger.wait_for(1, "a")


def test_a_warm_shutdown_waits_and_a_cold_one_does_not(make_plain_app, workers, ledger):
    app = make_plain_app()
    warm = workers(app)
    app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    warm.signal(signal.SIGTERM)
    warm.wait_for_log("Warm shutdown")
    remains_true(lambda: warm.alive, 0.5)
    ledger.open_gate("gate")
    assert warm.wait() == 0
    assert ledger.runs("a")[0].outcome == "ok"

    cold = workers(app)
    app.tasks.held.delay("b", "never opened")
    ledger.wait_for(1, "b", ended=False)
    cold.cold_stop()
    assert ledger.runs("b")[0].outcome != "ok"


def test_a_worker_that_refuses_to_start_tells_its_exit_code_and_log(make_plain_app, workers):
    app = make_plain_app()
    worker = workers(app, "--pool=unheard-of", ready=False)

    assert worker.wait() == 2
    assert "unheard-of" in worker.log
    with pytest.raises(ProcessFailed, match="ended with 2 before"):
        worker.wait_ready()


def test_beat_publishes_what_its_schedule_says(make_plain_app, workers, ledger):
    entry = {"task": "jobs.quick", "schedule": 0.2, "args": ["tick"]}
    app = make_plain_app(conf={"beat_schedule": {"tick": entry}})
    workers(app, pool="solo")
    workers.beat(app)

    ledger.wait_for(3, "tick")


def test_programs_start_together_at_a_gate(make_plain_app, workers, ledger):
    app = make_plain_app()
    source = """
        import sys
        ledger.note("here", sys.argv[1])
        ledger.wait_gate("all here")
        print(tasks.quick.delay(sys.argv[1]).id)
    """
    programs = [workers.python(app, source, name) for name in "abc"]
    wait_until(lambda: len(ledger.notes("here")) == 3)
    ledger.open_gate("all here")
    ids = {program.output.strip() for program in programs}

    workers(app)

    assert {run.task_id for run in ledger.wait_for(3)} == ids


def add_task(under_test):
    @under_test.app.task(name="jobs.extra", shared=False)
    def extra():
        return under_test.app.conf.dedupe_prefix


def test_every_process_builds_the_app_of_the_test(make_plain_app, workers):
    rules = {"jobs.*": "until_finished", "jobs.slow": {"lock": "once", "key": ["key"]}}
    app = make_plain_app(rules=rules, prefix="p", conf={"task_acks_late": True}, setup=add_task)
    assert app.app.conf.dedupe_rules == rules

    program = workers.python(app, "print(app.conf.dedupe_rules, app.conf.task_acks_late)")
    assert program.output.strip() == f"{rules} True"
    workers(app)
    assert app.app.tasks["jobs.extra"].delay().get(timeout=30) == "p"


def test_the_ledger_tells_bodies_that_overlap(make_plain_app, workers, ledger):
    app = make_plain_app()
    workers(app, pool="threads", concurrency=3)
    for key in ("a", "a", "b"):
        app.tasks.held.delay(key)
    ledger.wait_for(3, ended=False)

    ledger.open_gate("gate")
    ledger.wait_for(3)
    app.tasks.quick.delay("a").get(timeout=30)

    assert (ledger.peak("a"), ledger.peak("b")) == (2, 1)
    assert [run.key for run in ledger.overlaps()] == ["a"]


def test_commands_are_counted_as_the_server_received_them(make_plain_app, valkey):
    app = make_plain_app()
    app.tasks.quick.delay("to open the connections")

    with count_commands(valkey) as seen:
        app.tasks.quick.delay("a")
        valkey.client().eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "dedupe:x", 'a "word"\n')
        valkey.client().get("dedupe:x")

    assert seen.names(db=STORE) == ["EVAL", "GET"], "what a script does inside is not counted"
    assert seen.names(key="dedupe:*") == ["EVAL", "GET"]
    assert seen.of(name="EVAL")[0].args[2:] == ("dedupe:x", 'a "word"\n')
    assert seen.names(db=BROKER, key=app.queue) == ["LPUSH"]
    assert list(seen.by_client(db=STORE).values()) == [2]


def test_a_server_keeps_its_place_and_loses_or_keeps_its_data(start_valkey):
    server = start_valkey(maxmemory="64mb", maxmemory_policy="allkeys-lru")
    place = server.url()
    assert server.client().config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"

    server.client().set("a", 1)
    server.restart(save=True)
    assert server.client().get("a") == "1"

    server.restart()
    assert server.client().get("a") is None

    server.client().set("a", 1)
    server.kill()
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(place).ping()
    server.start()
    assert server.client().get("a") is None
    assert server.url() == place


def test_a_server_that_stalls_takes_connections_and_answers_none(start_valkey):
    server = start_valkey()
    server.client().set("a", 1)
    impatient = redis.Redis.from_url(server.url(), socket_timeout=0.2, retry=None)

    server.pause()
    with pytest.raises(redis.TimeoutError):
        impatient.get("a")
    server.resume()
    assert impatient.get("a") == b"1"

    server.pause_clients(0.4)
    with pytest.raises(redis.TimeoutError):
        impatient.get("a")
    assert wait_until(lambda: server.client().get("a")) == "1"
    impatient.close()


def test_a_worker_comes_back_after_its_server(make_plain_app, workers, ledger, start_valkey):
    server = start_valkey()
    app = make_plain_app(server=server)
    worker = workers(app, pool="threads")
    server.restart()
    worker.wait_for_log("Connection to broker lost")

    app.tasks.quick.delay("a")

    ledger.wait_for(1, "a")


def test_a_line_is_cut_blocked_and_stalled(valkey, start_proxy):
    proxy = start_proxy(valkey.url())

    def dial():
        line = socket.create_connection((urlsplit(proxy.url).hostname, urlsplit(proxy.url).port), timeout=1)
        line.sendall(b"PING\r\n")
        return line

    with dial() as line:
        assert line.recv(64) == b"+PONG\r\n"
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            line.recv(64)
    with dial() as line:
        assert line.recv(64) == b"+PONG\r\n"

    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    proxy.restore()

    proxy.stall()
    with dial() as line:
        with pytest.raises(TimeoutError):
            line.recv(64)
        proxy.restore()
        assert line.recv(64) == b"+PONG\r\n"


@pytest.mark.services
def test_rabbitmq_with_a_database_of_its_own_runs_a_workflow(
    make_plain_app, workers, ledger, rabbitmq_url, postgres_url
):
    app = make_plain_app(broker=rabbitmq_url, backend=f"db+{postgres_url}")
    workers(app)
    tasks = app.tasks

    links = chain(tasks.quick.s("a"), tasks.append.s("b"), tasks.append.s("c"))
    assert links.delay().get(timeout=30) == ["a", "b", "c"]
    members = [tasks.quick.s("y"), tasks.quick.s("x")]
    assert chord(members, tasks.gather.s("z")).delay().get(timeout=30) == ["x", "y"]

    assert len(ledger.runs()) == 6


def test_each_task_ends_as_it_says(make_plain_app, workers, ledger):
    app = make_plain_app()
    workers(app, pool="threads", concurrency=4)
    tasks = app.tasks

    tasks.fails.apply_async(("fails",), link_error=tasks.record_error.s(key="told"))
    tasks.fails_unpicklably.delay("unpicklable")
    tasks.ignores.delay("ignores")
    tasks.rejects.delay("rejects", times=2)
    tasks.retries.delay("retries", failures=2)
    tasks.retries.delay("retries in vain", failures=9)
    tasks.autoretries.delay("autoretries", failures=2)
    tasks.successor.delay("successor", 2)
    tasks.publishes.delay("publishes", "jobs.quick", ["published"])
    tasks.replaces.delay("replaces", "jobs.quick", ["replacement"])

    def outcomes(n, key):
        return [(run.outcome, run.attempt) for run in ledger.wait_for(n, key)]

    assert outcomes(1, "fails") == [("ValueError", 0)]
    assert wait_until(lambda: [note["error"] for note in ledger.notes("error", "told")]) == ["ValueError"]
    assert outcomes(1, "unpicklable") == [("Unpicklable", 0)]
    assert outcomes(1, "ignores") == [("Ignore", 0)]
    assert outcomes(3, "rejects") == [("Reject", 0), ("Reject", 0), ("ok", 0)]
    assert outcomes(3, "retries") == [("Retry", 0), ("Retry", 1), ("ok", 2)]
    assert outcomes(4, "retries in vain") == [("Retry", 0), ("Retry", 1), ("Retry", 2), ("Flaky", 3)]
    assert outcomes(3, "autoretries") == [("Flaky", 0), ("Flaky", 1), ("ok", 2)]
    assert outcomes(3, "successor") == [("ok", 0)] * 3
    assert [note["task_id"] for note in ledger.notes("published")] == ledger.ids("successor")[1:]
    assert outcomes(1, "published") == [("ok", 0)]
    assert outcomes(1, "replacement") == [("ok", 0)]
    assert ledger.ids("replacement") == ledger.ids("replaces")


INNER = """
    import os
    from tests.harness.processes import RUN_MARK, processes_of_run

    def test_inner(make_app, workers, ledger, start_valkey, tmp_path):
        app = make_app(install=False)
        workers(app, concurrency=1)
        app.tasks.hang.delay("a")
        (run,) = ledger.wait_for(1, "a", ended=False)
        server = start_valkey()
        server.pause()
        (tmp_path / "started").write_text(str(server.folder))
        {then}

    def test_after():
        assert not [line for line in processes_of_run(os.environ[RUN_MARK]) if "celery" in line]
"""


@pytest.fixture
def start_inner_run(tmp_path):
    """pytest on a test that starts a worker whose task hangs in C, and a second server which is stopped."""
    runs = []

    def start(then, *options):
        (tmp_path / "test_inner.py").write_text(textwrap.dedent(INNER).format(then=then))
        command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest"]
        places = [f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'temp'}", tmp_path / "test_inner.py"]
        run = subprocess.Popen(
            [*command, *options, *places],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), RUN_MARK: str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.kill()
        run.communicate()


def test_a_failed_test_ends_its_processes_and_shows_their_logs(start_inner_run, tmp_path):
    run = start_inner_run("assert not run")

    output, _ = run.communicate(timeout=60)

    assert "1 failed, 1 passed" in output
    assert "log of worker0" in output
    assert "ready." in output
    assert processes_of_run(str(tmp_path)) == []


@pytest.mark.slow  # execnet gives a worker ten seconds to end by itself when its controller is gone
@pytest.mark.parametrize("options", [[], ["-n1"]], ids=["plain", "xdist"])
def test_a_killed_run_leaves_nothing_alive(start_inner_run, tmp_path, options):
    run = start_inner_run("ledger.wait_gate('never opened')", *options)
    (started,) = wait_until(lambda: list(tmp_path.rglob("started")), 60)
    folder = Path(wait_until(started.read_text))
    alive = processes_of_run(str(tmp_path))
    assert sum("valkey-server" in line for line in alive) == 2
    assert sum("celery" in line for line in alive) >= 2

    run.kill()

    wait_until(lambda: not processes_of_run(str(tmp_path)), 60, lambda: f"{processes_of_run(str(tmp_path))}")
    assert not folder.exists()
