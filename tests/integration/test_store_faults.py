"""The store fails in each way that it can, while a task is published, starts, runs or ends.

Broker and result backend are on another server. Whatever the store does, no task is lost, no outcome changes,
nobody waits longer than the timeouts, what went on without its lock is told, and all recovers by itself.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
import redis

from celery_dedupe import StoreUnavailable, duplicate_of, signals
from celery_dedupe.store.breaker import PAUSE
from tests.harness.servers import BROKER
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HANG = 20.0  # seconds that nothing here takes unless it hangs
ALLOW = {"lock": "until_finished", "lease": "30s"}
REFUSE = {**ALLOW, "on_store_error": "refuse"}


class Outage:
    """A server with a line to it, and one way for it to fail.

    ``frees``: it still does what only deletes.
    """

    frees = False

    def __init__(self, server, line):
        self.server = server
        self.line = line

    def begin(self):
        raise NotImplementedError

    def end(self):
        raise NotImplementedError


class Refused(Outage):
    def begin(self):
        self.line.refuse()

    def end(self):
        self.line.restore()


class BlackHole(Outage):
    """What is sent while it lasts arrives afterwards."""

    def begin(self):
        self.line.stall()

    def end(self):
        self.line.restore()


class Paused(Outage):
    """CLIENT PAUSE, of what may write: a server that is paused in full takes no order to end it."""

    def begin(self):
        self.server.client().client_pause(60_000, all=False)

    def end(self):
        self.server.client().client_unpause()


class OutOfMemory(Outage):
    """OOM, with eviction off."""

    frees = True

    def begin(self):
        self.server.client().config_set("maxmemory", 1)

    def end(self):
        self.server.client().config_set("maxmemory", 0)


class ReadOnly(Outage):
    """READONLY: it became a replica. Its master does not answer, so it keeps the data it has."""

    def begin(self):
        self.server.client().replicaof("127.0.0.1", 1)

    def end(self):
        self.server.client().replicaof("NO", "ONE")


class Loading(Outage):
    """LOADING: it reads its data from disk, slowly."""

    def begin(self):
        client = self.server.client()
        client.mset({f"filler:{number}": secrets.token_hex(1024) for number in range(1000)})
        client.config_set("loading-process-events-interval-bytes", 1024)
        client.config_set("key-load-delay", 50_000)
        self._reload = threading.Thread(target=self._load)
        self._reload.start()
        wait_until(self._is_loading)

    def end(self):
        self.server.client().config_set("key-load-delay", 0)
        self._reload.join(HANG)
        self.server.client().delete(*(f"filler:{number}" for number in range(1000)))

    def _load(self):
        # Where its test has failed the server is gone before it has loaded.
        with (
            redis.Redis.from_url(self.server.url(), socket_timeout=None) as client,
            suppress(redis.RedisError),
        ):
            client.execute_command("DEBUG", "RELOAD")

    def _is_loading(self):
        try:
            self.server.client().ping()
        except redis.BusyLoadingError:
            return True
        return False


@pytest.fixture(params=[Refused, BlackHole, Paused, OutOfMemory, ReadOnly, Loading])
def outage(request, start_valkey, start_proxy):
    server = start_valkey()
    return request.param(server, start_proxy(server.store_url))


@pytest.fixture
def unprotected():
    """What was told to have gone on without its locks, in this process."""
    events = []

    def note(app, event):
        events.append(event)

    with signals.ran_unprotected.connected_to(note):
        yield events


def note_unprotected(under_test):
    """The same in other processes, by the ledger."""

    def note(app, event):
        under_test.ledger.note("unprotected", event.task_id, stage=event.stage, reason=event.reason)

    signals.ran_unprotected.connect(note, weak=False)


class Asked(Counter):
    """Counts how often each verb of a store is called, by the thread that publishes."""

    def __init__(self, store):
        super().__init__()
        self._store = store
        self._thread = threading.get_ident()

    def __getattr__(self, name):
        verb = getattr(self._store, name)

        def counted(*args, **kwargs):
            if threading.get_ident() == self._thread:
                self[name] += 1
            return verb(*args, **kwargs)

        return counted


def test_at_a_publish(outage, make_app, valkey, unprotected):
    app = make_app({"jobs.quick": ALLOW, "jobs.slow": REFUSE}, url=outage.line.url)
    allowed, refused = app.tasks.quick, app.tasks.slow
    allowed.delay("before")
    place = app.dedupe.guard.store.places["default"]
    asked = place.store = Asked(place.store)  # beneath the breaker
    outage.begin()
    started = time.monotonic()

    with pytest.raises(StoreUnavailable, match="claim store"):
        refused.delay("a")
    results = [allowed.delay("a") for _ in range(20)]
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            refused.delay("a")

    took = time.monotonic() - started
    assert took < HANG
    assert asked["claim"] <= 1 + took / PAUSE, (
        "once an outage, and then one at a time, to see whether it is over"
    )
    assert valkey.client(BROKER).llen(app.queue) == 1 + len(results)
    assert not any(duplicate_of(result) for result in results)
    assert [(event.task_id, event.stage) for event in unprotected] == [
        (result.id, "publish") for result in results
    ]

    outage.end()
    wait_until(lambda: is_protected(allowed, "b"))
    assert is_accepted(refused, "a"), "what was refused holds nothing"
    assert is_protected(refused, "c")


def is_protected(task, key):
    """Whether the second of two equal calls is a duplicate."""
    task.delay(key)
    return duplicate_of(task.delay(key)) is not None


def is_accepted(task, key):
    return wait_until(lambda: duplicate_of(task.delay(key)) is None)


def test_at_a_start(outage, make_app, workers, ledger):
    app = make_app({"jobs.quick": ALLOW, "jobs.slow": REFUSE}, url=outage.line.url, setup=note_unprotected)
    worker = workers(app, concurrency=1)
    worker.pause()
    allowed = [app.tasks.quick.delay(f"allowed {number}") for number in range(10)]
    refused = app.tasks.slow.delay("refused", 0)
    heard = outage.line.heard
    outage.begin()
    started = time.monotonic()
    worker.resume()

    assert [result.get(timeout=HANG) for result in allowed] == [f"allowed {number}" for number in range(10)]
    worker.wait_for_log(f"[{refused.id}] wait")
    took = time.monotonic() - started
    # A connection, what it says of itself, and a command; once more where it was lost.
    assert outage.line.heard - heard <= 10 * (2 + took / PAUSE)
    told = ledger.notes("unprotected")
    assert [(note["key"], note["stage"]) for note in told] == [(result.id, "start") for result in allowed]
    assert not ledger.runs("refused")

    outage.end()
    assert refused.get(timeout=30) == "refused"
    assert len(ledger.runs()) == 11
    assert not ledger.overlaps()
    assert app.tasks.quick.delay("allowed 0").get(timeout=HANG) == "allowed 0"
    wait_until(lambda: no_claims(outage.server))


def test_at_an_end(outage, make_app, workers, ledger):
    app = make_app({"jobs.*": {**ALLOW, "lease": "10m"}}, url=outage.line.url)
    worker = workers(app, concurrency=2)
    app.tasks.quick.delay("so that the server knows the scripts").get(timeout=HANG)
    wait_until(lambda: no_claims(outage.server))
    first = app.tasks.held.delay("a")
    second = app.tasks.held.apply_async(("b",), dedupe={"on_store_error": "refuse"})
    ledger.wait_for(3, ended=False)
    outage.begin()

    ledger.open_gate("gate")
    assert (first.get(timeout=HANG), second.get(timeout=HANG)) == ("a", "b")
    failed = 0 if outage.frees else 2
    wait_until(
        lambda: worker.log.count("Asked again every") == failed, message="the process of each has failed"
    )

    outage.end()
    wait_until(lambda: no_claims(outage.server), message="the releases are made up for")
    wait_until(lambda: worker.log.count("the claim store answers again") == failed)
    assert app.tasks.held.delay("a").get(timeout=HANG) == "a"
    assert [(run.outcome, run.attempt) for run in ledger.wait_for(4)] == [("ok", 0)] * 4
    wait_until(lambda: no_claims(outage.server))
    assert "Traceback" not in worker.log
    assert "lost its lease" not in worker.log


def no_claims(server):
    return not server.claims()


def ttl_of(server):
    """Milliseconds left of the only claim there is."""
    (key,) = server.claims()
    return server.client().pttl(key)


@pytest.fixture
def server(start_valkey):
    return start_valkey()


def test_a_lost_connection_is_not_noticed(server, start_proxy, make_app, unprotected):
    line = start_proxy(server.store_url)
    app = make_app({"jobs.*": REFUSE}, url=line.url)
    for key in "abc":
        assert is_protected(app.tasks.quick, key)
        line.cut()
    assert not unprotected


def test_a_server_that_has_forgotten_the_scripts_is_told_them(server, make_app, workers, ledger, unprotected):
    app = make_app({"jobs.held": ALLOW}, url=server.store_url, setup=note_unprotected)
    workers(app, concurrency=1)
    server.client().script_flush()
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)
    server.client().script_flush()
    assert duplicate_of(app.tasks.held.delay("a")).task_id == result.id
    server.client().script_flush()
    ledger.open_gate("gate")

    wait_until(lambda: no_claims(server))
    assert result.get(timeout=HANG) == "a"
    assert not unprotected
    assert not ledger.notes("unprotected")


def test_a_restart_that_keeps_the_data_keeps_the_locks(server, make_app, workers, ledger, unprotected):
    app = make_app({"jobs.held": ALLOW}, url=server.store_url, setup=note_unprotected)
    worker = workers(app, concurrency=2)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)

    server.restart(save=True)

    assert duplicate_of(app.tasks.held.delay("a")).task_id == first.id
    ledger.open_gate("gate")
    assert first.get(timeout=HANG) == "a"
    wait_until(lambda: no_claims(server))
    assert len(ledger.runs()) == 1
    assert "lost its lease" not in worker.log
    assert not unprotected
    assert not ledger.notes("unprotected")


def test_a_restart_that_loses_the_data_loses_a_lock_and_no_task(server, make_app, workers, ledger):
    app = make_app({"jobs.held": {**ALLOW, "key": ["key"], "lease": "3s"}}, url=server.store_url)
    worker = workers(app, concurrency=2)
    first = app.tasks.held.delay("a", gate="first")
    ledger.wait_for(1, ended=False)

    server.restart()

    worker.wait_for_log(f"[{first.id}] lost its lease")
    second = app.tasks.held.delay("a", gate="second")
    ledger.wait_for(2, ended=False)
    ledger.open_gate("first")
    assert first.get(timeout=HANG) == "a"
    worker.wait_for_log(f"[{first.id}] succeeded")
    third = app.tasks.held.delay("a", gate="second")
    assert duplicate_of(third).task_id == second.id, "the first has not freed what is the second's"
    ledger.open_gate("second")
    assert second.get(timeout=HANG) == "a"
    wait_until(lambda: no_claims(server))


def test_an_outage_shorter_than_the_lease_loses_nothing(server, start_proxy, make_app, workers, ledger):
    line = start_proxy(server.store_url)
    app = make_app({"jobs.held": {**ALLOW, "lease": "15s"}}, url=line.url)
    worker = workers(app, concurrency=1)
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)

    line.refuse()
    wait_until(lambda: ttl_of(server) < 8_000, message="it was to be renewed with 10 s left")
    line.restore()

    left = ttl_of(server)
    wait_until(lambda: ttl_of(server) > left, message="the lease is renewed again")
    ledger.open_gate("gate")
    assert result.get(timeout=HANG) == "a"
    wait_until(lambda: no_claims(server))
    assert "lost its lease" not in worker.log


def test_an_outage_longer_than_the_lease_is_told(server, start_proxy, make_app, workers, ledger):
    line = start_proxy(server.store_url)
    app = make_app({"jobs.held": {**ALLOW, "lease": "3s"}}, url=line.url)
    worker = workers(app, concurrency=1)
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, ended=False)

    line.refuse()
    wait_until(lambda: no_claims(server))
    line.restore()

    worker.wait_for_log(f"[{result.id}] lost its lease")
    ledger.open_gate("gate")
    assert result.get(timeout=HANG) == "a"


def test_eviction_drops_claims_and_no_task(start_valkey, make_app, workers, ledger):
    server = start_valkey(maxmemory="8mb", maxmemory_policy="allkeys-random")
    app = make_app({"jobs.quick": ALLOW}, url=server.store_url)
    keys = [f"key {number}" for number in range(20)]
    results = [app.tasks.quick.delay(key) for key in keys]
    fill = server.client(BROKER)

    def evicted():
        fill.mset({secrets.token_hex(8): "x" * 4096 for _ in range(100)})
        return no_claims(server)

    wait_until(evicted)
    again = [app.tasks.quick.delay(key) for key in keys]
    assert not any(duplicate_of(result) for result in again)
    fill.flushall()
    workers(app)

    wait_until(lambda: all(result.ready() for result in results + again))
    assert {run.key for run in ledger.runs()} == set(keys)
    assert not ledger.overlaps()
    wait_until(lambda: no_claims(server))
