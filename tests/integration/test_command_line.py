"""``celery -A app dedupe ...`` in processes of its own, against real stores and workers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from types import SimpleNamespace

import celery
import pytest

from celery_dedupe import duplicate_of
from celery_dedupe.core.asks import Caller, ClaimAsk
from celery_dedupe.store.connect import open_store
from tests.contract.conftest import form_cluster
from tests.harness.commands import count_commands
from tests.harness.processes import ROOT, Process, environment
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer

pytestmark = pytest.mark.integration

RULES = {"jobs.*": {"lock": "queue_and_run", "key": ["key"]}}
NOBODY = "redis://127.0.0.1:1/0"


def claim_many(url: str, count: int, scope: str = "jobs.quick") -> None:
    """As many queued claims, of nobody's."""
    with closing(open_store(url)) as store:
        for first in range(0, count, 200):
            asks = [
                ClaimAsk(f"dedupe:{scope}:{number:032x}", 3_600_000, frozenset())
                for number in range(first, min(first + 200, count))
            ]
            assert store.claim(asks, Caller(f"{scope}-{first}")) is None


@pytest.fixture
def run(workers):
    """``run(app, "locks")``: what it prints, as JSON if asked for; it has to end with ``exit_code``."""

    def command(app, *words, exit_code=0, **how):
        done = workers.celery(app, "dedupe", *words, **how)
        assert done.returncode == exit_code, (done.stdout, done.stderr)
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return command


def test_what_a_worker_runs_and_what_waits_for_it(make_app, workers, ledger, run):
    app = make_app(RULES)
    worker = workers(app)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    second = app.tasks.held.delay("a")

    running, queued = run(app, "locks", "--json")

    assert (running["task_id"], running["state"], running["node"]) == (first.id, "running", worker.node)
    assert (queued["task_id"], queued["state"], queued["node"]) == (second.id, "queued", None)
    assert running["key"] == queued["key"]
    found = run(app, "explain", "jobs.held", '["a"]', "--json", exit_code=1)
    assert found["locks"][0]["key"] == queued["key"]
    assert {part["task_id"] for part in found["locks"][0]["record"]} == {first.id, second.id}

    told = run(app, "release", queued["key"], exit_code=1)
    assert told == "freed 1 queued\nleft 1 running, which --force frees\n"
    third = app.tasks.held.delay("a")
    assert duplicate_of(third) is None
    ledger.open_gate("gate")
    assert [result.get(timeout=30) for result in (first, second, third)] == ["a"] * 3, "no task is lost"


def test_a_run_that_is_freed_by_force_learns_of_it(make_app, workers, ledger, run):
    app = make_app({"jobs.*": {"lock": "until_finished", "lease": "2s"}})
    worker = workers(app)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    done = workers.celery(app, "dedupe", "release", "--task", "jobs.held", "--force")

    assert (done.returncode, done.stdout) == (0, "freed 1 running\n")
    assert f" released 1 running of --task 'jobs.held': {first.id}" in done.stderr
    worker.wait_for_log("lost its lease on dedupe:jobs.held:")
    ledger.open_gate("gate")
    assert first.get(timeout=30) == "a"


def test_two_thousand_claims_are_freed_in_few_round_trips(make_app, valkey, run):
    """Case 7. So many round trips take a fraction of a second wherever the store is."""
    app = make_app(RULES)
    claim_many(valkey.store_url, 2000)
    with count_commands(valkey) as commands:
        assert run(app, "release", "--task", "jobs.*", "--state", "queued", "--yes") == "freed 2,000 queued\n"
    assert len(commands.received) < 50
    assert run(app, "locks") == "nothing\n"


def test_it_needs_no_worker_and_no_broker(make_app, valkey, run):
    app = make_app(RULES, broker=NOBODY, backend=NOBODY)
    claim_many(valkey.store_url, 2)
    run(app, "rules")
    run(app, "explain", "jobs.quick", '["a"]')
    first = run(app, "locks", "--json")[0]
    run(app, "release", first["key"])
    run(app, "release", "--task", "jobs.quick")
    assert run(app, "locks") == "nothing\n"


def test_a_store_that_does_not_answer(make_app, workers):
    app = make_app(RULES, url=NOBODY)
    done = workers.celery(app, "dedupe", "locks")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: the claim store cannot be used: ConnectionError")
    assert done.stderr.count("\n") == 1


def test_a_live_view_until_it_is_interrupted(make_app, tmp_path, reaper, valkey):
    app = make_app(RULES)
    command = [sys.executable, "-m", "celery", "-A", app.module, "dedupe", "locks", "--watch"]
    view = Process(command, name="watch", reaper=reaper, log_path=tmp_path / "watch.log", env=app.env)
    view.wait_for_log("nothing, at ")
    claim_many(valkey.store_url, 1)
    view.wait_for_log("1 queued, at ")
    view.signal(signal.SIGINT)
    assert view.wait() == 0
    view.kill()


def test_a_bar_where_it_takes_long(make_app, valkey):
    """On a terminal, and on the error stream: what is printed stays clean."""
    app = make_app(RULES)
    claim_many(valkey.store_url, 7000)
    command = [sys.executable, "-m", "celery", "-A", app.module, "dedupe", "locks", "--json"]
    ours, terminal = pty.openpty()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment(), **app.env},
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        output = process.stdout.read()
        seen = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert process.returncode == 0
    assert len(json.loads(output)) == 7000
    assert b"Reading claims" in seen
    assert b"100%" in seen


def _read(terminal: int) -> bytes:
    with suppress(OSError):  # how Linux says that nobody has the other end any more
        return os.read(terminal, 65536)
    return b""


@pytest.fixture(scope="module")
def cluster(reaper: Reaper) -> Iterator[list[ValkeyServer]]:
    """Three servers that share the slots."""
    nodes = form_cluster(reaper)
    yield nodes
    for node in nodes:
        node.close()


def test_all_nodes_of_a_cluster(make_app, cluster, run):
    url = f"redis+cluster://{cluster[0].host}:{cluster[0].port}"
    app = make_app(RULES, url=url)
    with closing(open_store(url)) as store:
        for number in range(300):
            ask = ClaimAsk(f"dedupe:jobs.quick:{number:032x}", 3_600_000, frozenset())
            assert store.claim([ask], Caller(f"q{number}")) is None
    assert all(node.client(0).dbsize() > 50 for node in cluster)

    rows = run(app, "locks", "--json")
    assert sorted(row["task_id"] for row in rows) == sorted(f"q{number}" for number in range(300))
    assert [row["since"] for row in rows] == sorted(row["since"] for row in rows)
    assert run(app, "release", rows[7]["key"]) == "freed 1 queued\n"
    assert run(app, "release", "--task", "jobs.*", "--yes") == "freed 299 queued\n"
    assert [node.client(0).dbsize() for node in cluster] == [0, 0, 0]


def inspected(workers, app):
    """By node: what ``celery inspect dedupe`` shows."""
    if celery.VERSION < (5, 4):  # its command line knows its own inspect commands only
        replies = app.app.control.broadcast("dedupe", reply=True, timeout=5, limit=2)
        return {node: answer for reply in replies for node, answer in reply.items()}
    done = workers.celery(app, "inspect", "dedupe", "--json", "--timeout=5")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_worker_says_what_it_holds(make_app, workers, ledger, pool):
    app = make_app({"jobs.*": "until_finished"})
    busy, resting = workers(app, pool=pool), workers(app, "--queues=another", pool=pool)
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    found = inspected(workers, app)

    assert found.keys() == {busy.node, resting.node}
    (lease,) = found[busy.node]["leases"]
    assert (lease["task"], lease["task_id"]) == ("jobs.held", result.id)
    assert lease["fence"] > 0
    assert 0 < lease["expires_in"] <= 60
    assert found[resting.node]["leases"] == []
    assert found[busy.node]["digest"] == found[resting.node]["digest"]
    assert {answer["breaker"] for answer in found.values()} == {"closed"}
    ledger.open_gate("gate")
    assert result.get(timeout=30) == "a"


def test_check_tells_workers_with_other_rules_and_without_the_extension(make_app, workers, run):
    app = make_app(RULES)
    first = workers(app)
    assert [one["node"] for one in run(app, "check", "--json")["workers"]] == [first.node]
    other = workers(app, env={"DEDUPE_RULES": json.dumps({"jobs.*": "once"})})
    bare = workers(app, env={"DEDUPE_INSTALL": "0"})

    found = run(app, "check", "--json", "--timeout=5", exit_code=1)

    errors = [finding["text"] for finding in found["findings"] if finding["kind"] == "error"]
    assert len(errors) == 2
    assert any(text.startswith(f"{bare.node} does not have celery-dedupe") for text in errors)
    (differ,) = [text for text in errors if text.startswith("workers differ in their rules: ")]
    assert first.node in differ
    assert other.node in differ
    assert {one["node"] for one in found["workers"]} == {first.node, other.node}


@pytest.mark.parametrize("broker", ["valkey", "rabbitmq"])
def test_check_tells_of_claims_that_a_purge_left(request, make_app, workers, run, broker):
    """Case 7. While their messages wait, or a worker has them, all is well."""
    url = request.getfixturevalue("rabbitmq_url") if broker == "rabbitmq" else None
    app = make_app(RULES, broker=url)
    worker = workers(app, "--prefetch-multiplier=1", concurrency=1)
    for number in range(20):
        app.tasks.held.delay(str(number))

    def missing():
        document = run(app, "check", "--json", "--timeout=3")
        return [one["text"] for one in document["findings"] if " have no message" in one["text"]]

    assert missing() == []
    assert app.app.control.purge() > 10
    (text,) = missing()
    assert text.startswith("at least 1"), "of the twenty, but for those that the worker has"
    assert "They are of jobs.held." in text
    run(app, "release", "--task", "jobs.*", "--state", "queued", "--yes")
    assert missing() == []
    assert worker.alive


def test_check_without_a_broker_checks_the_rest(make_app, run):
    app = make_app(RULES, broker=NOBODY, backend=NOBODY)
    found = run(app, "check", "--json")
    assert found["ok"]
    assert found["claims"].startswith("valkey ")
    assert any("no broker answers" in one["text"] for one in found["findings"] if one["kind"] == "note")


def test_django_is_set_up_as_in_a_worker(workers, valkey):
    """Its apps attach the extension, and bring the tasks."""
    folder = ROOT / "examples" / "django"
    env = {"PYTHONPATH": f"{folder}:{ROOT}", "SHOP_REDIS": valkey.store_url}
    shop = SimpleNamespace(module="shop", queue="celery", env=env)
    done = workers.celery(shop, "dedupe", "rules", "--json")
    assert done.returncode == 0, done.stderr
    rules = {task["task"]: task["rule"] for task in json.loads(done.stdout)["tasks"]}
    assert rules["orders.tasks.make_invoice"] == "orders.tasks.make_invoice"
    assert rules["orders.tasks.charge"] is None
