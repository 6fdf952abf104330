"""A process whose clock is an hour off changes nothing (Case 21)."""

from __future__ import annotations

import json
import time

import pytest

from celery_dedupe import duplicate_of
from tests.apps import skew
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LEASE = 3


@pytest.fixture(params=[3600, -3600], ids=["an hour ahead", "an hour behind"])
def off(request):
    """The environment of a process with that clock."""
    return {skew.SKEW: str(request.param)}


@pytest.fixture
def app(make_app):
    rules = {
        "jobs.held": {"lock": "until_finished", "key": ["key"], "lease": LEASE, "queue_ttl": 500},
        "jobs.quick": {"lock": "until_finished", "queue_ttl": 500},
        "jobs.slow": {"lock": "queue_and_run", "key": ["key"]},
        "jobs.append": {"lock": "once", "keep": 500},
    }
    return make_app(rules, setup=skew.install)


def ttl(server):
    """Seconds left of the only claim there is."""
    (key,) = server.claims()
    return server.client().pttl(key) / 1000


def test_the_clock_is_off(app, workers, off):
    program = workers.python(
        app, "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())", env=off
    )
    for shown in program.output.split():
        assert 3500 < abs(float(shown) - time.time()) < 3700


@pytest.mark.parametrize("options", [{}, {"countdown": 100}, {"expires": 300}], ids=str)
def test_a_claim_is_as_long_whoever_publishes(app, valkey, workers, off, options):
    source = "import json, sys; print(tasks.quick.apply_async(('a',), **json.loads(sys.argv[1])).id)"
    task_id = workers.python(app, source, json.dumps(options), env=off).output.strip()

    length = min(500 + options.get("countdown", 0), options.get("expires", 1000))
    assert length - 60 < ttl(valkey) <= length
    found = duplicate_of(app.tasks.quick.delay("a"))
    assert (found.task_id, found.state) == (task_id, "queued")
    assert length - 60 < found.expires_in <= length


def test_a_worker_holds_its_leases_and_ends_them(app, valkey, workers, ledger, off):
    workers(app, concurrency=1, env=off)
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)
    first = ttl(valkey)
    assert 0 < first <= LEASE
    (key,) = valkey.claims()
    until = valkey.client().pexpiretime(key)
    wait_until(
        lambda: valkey.client().pexpiretime(key) > until + LEASE * 1000, message="it outlives its length"
    )
    assert duplicate_of(app.tasks.held.delay("a")).task_id == result.id
    ledger.open_gate("gate")
    assert result.get(timeout=15) == "a"
    wait_until(lambda: not valkey.claims())


def test_seen_then_called_again(app, workers, ledger, off):
    """The result's date and the run's start are one worker's, so its clock is compared with itself alone."""
    workers(app, concurrency=1, env=off)
    for _ in range(50):
        result = app.tasks.quick.delay("a")
        assert duplicate_of(result) is None
        assert result.get(timeout=15) == "a"
    assert len(ledger.runs()) == 50


def test_a_killed_workers_lock_ends_within_its_lease(app, valkey, workers, ledger, off):
    broken = workers(app, concurrency=1, env=off)
    app.tasks.held.delay("a", "never opened")
    ledger.wait_for(1, ended=False)
    broken.kill()

    assert 0 < ttl(valkey) <= LEASE
    workers(app, concurrency=1)
    wait_until(lambda: duplicate_of(app.tasks.held.delay("a")) is None)
    ledger.open_gate("gate")
    ledger.wait_for(1)


@pytest.mark.parametrize("first", ["the wrong clock first", "the right clock first"])
def test_what_waits_at_one_worker_starts_soon_at_the_other(app, workers, ledger, off, first):
    """The eta of a message is by the clock of who sent it, and is read by another."""
    for env in (off, {}) if first.startswith("the wrong") else ({}, off):
        workers(app, concurrency=1, env=env)
    for number in range(10):
        assert duplicate_of(app.tasks.slow.delay("a", 0.3)) is None
        ledger.wait_for(number + 1, ended=False)

    assert len(ledger.wait_for(10)) == 10
    assert not ledger.overlaps()
