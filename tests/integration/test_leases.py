"""Leases on real workers: kept while the task runs, freed when it cannot end, lost without harm to others."""

from __future__ import annotations

import pytest

from celery_dedupe import current_lease, duplicate_of, signals
from celery_dedupe.core.asks import Attempt, BeginAsk, Begun
from tests.contract.asks import free
from tests.harness.waiting import remains_true, wait_until

pytestmark = pytest.mark.integration

LEASE = 2
# A queued claim lives for an hour, far beyond every deadline here: only a lease can free these locks.
RULES = {
    "jobs.*": {"lock": "until_finished", "key": ["key"], "scope": "jobs", "lease": LEASE},
    "jobs.fenced": {"lock": "while_running", "key": ["key"], "lease": LEASE},
}
TERMINATE = {"jobs.*": {**RULES["jobs.*"], "on_lease_lost": "terminate"}}


def tell_of_leases(under_test):
    """Notes each lost lease, and adds ``jobs.fenced``, which notes its own lease and waits for a gate."""
    ledger = under_test.ledger

    def note(app, event):
        ledger.note("lease_lost", event.task_id, fence=event.fence, lock=event.key)

    signals.lease_lost.connect(note, sender=under_test.app, weak=False)

    @under_test.app.task(name="jobs.fenced", shared=False, bind=True)
    def fenced(self, key, gate=None):
        with ledger.run(self.name, key, self.request.id):
            lease = current_lease()
            ledger.note("lease", key, fence=lease.fence, task_id=self.request.id)
            if gate:
                ledger.wait_gate(gate)
            ledger.note("lease_after", key, lost=lease.lost, expires_in=lease.expires_in)

    under_test.tasks.fenced = fenced


@pytest.fixture
def start(make_app, workers):
    """An app on the rules, and a worker of that pool."""

    def start(pool="prefork", rules=RULES, **options):
        app = make_app(rules, setup=tell_of_leases)
        return app, workers(app, pool=pool, **options)

    return start


def the_key(app):
    ((key, _),) = app.dedupe.guard.store.scan("dedupe:*")
    return key


def take_over(app, key):
    """Gives the lock to another run, as if the first one's lease had died meanwhile."""
    store = app.dedupe.guard.store
    free(store, [key])
    taken = store.begin([BeginAsk(key, slot=True, lease=60_000)], Attempt("another", "its-token"))
    assert isinstance(taken, Begun)


def holders(app, key):
    return [run.task_id for run in app.dedupe.guard.store.read(key).running]


def accepted(task, *args, timeout=20, **options):
    """The result of a publish, once one is not a duplicate."""

    def publish():
        result = task.apply_async(args, **options)
        return None if duplicate_of(result) else result

    return wait_until(publish, timeout, f"{task.name}{args} is refused", interval=0.1)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_lease_is_kept_while_its_task_runs(start, ledger, pool):
    app, _ = start(pool)
    first = app.tasks.slow.delay("a", 3.5 * LEASE)
    ledger.wait_for(1, "a", ended=False)

    refused = []

    def has_ended():
        duplicate = duplicate_of(app.tasks.slow.delay("a", 0))
        if ledger.runs("a")[0].ended:
            return True
        refused.append(duplicate)
        return duplicate is None

    wait_until(has_ended, 30, interval=0.1)

    assert None not in refused, "accepted while it ran"
    assert len(refused) > 10
    assert {(duplicate.task_id, duplicate.state) for duplicate in refused} == {(first.id, "running")}
    assert all(0 < duplicate.expires_in <= LEASE for duplicate in refused)
    assert first.get(timeout=10) == "a"
    assert app.tasks.slow.delay("a", 0).get(timeout=10) == "a"


def test_a_start_is_refused_while_the_lease_is_kept(start, ledger):
    app, _ = start(concurrency=3)
    app.tasks.fenced.delay("a", "gate")
    ledger.wait_for(1, "a", ended=False)

    def second_is_refused():
        second = app.tasks.fenced.delay("a")
        return second.get(timeout=10, propagate=False) and second.state == "REVOKED"

    # A refused run releases nothing: neither the next one nor the one after gets in.
    remains_true(second_is_refused, 2.5 * LEASE)
    ledger.open_gate("gate")
    ledger.wait_for(1, "a")
    assert len(ledger.runs("a")) == 1


def test_a_killed_child_frees_its_lock(start, ledger):
    app, worker = start(concurrency=1)
    app.tasks.held.delay("a", "never opened")
    (run,) = ledger.wait_for(1, "a", ended=False)

    worker.kill_child(run.pid)

    assert accepted(app.tasks.quick, "a").get(timeout=10) == "a"
    assert not ledger.overlaps()


def test_a_killed_worker_frees_its_locks_within_the_lease(start, ledger, workers):
    app, worker = start()
    first = app.tasks.held.delay("a", "never opened")
    ledger.wait_for(1, "a", ended=False)

    worker.kill()

    assert duplicate_of(app.tasks.quick.delay("a")).task_id == first.id
    second = accepted(app.tasks.quick, "a")
    workers(app)
    assert second.get(timeout=10) == "a"


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_lost_lease_is_told_and_frees_nothing_of_the_next_holder(start, ledger, pool):
    app, worker = start(pool)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    key = the_key(app)

    take_over(app, key)

    told = wait_until(lambda: ledger.notes("lease_lost", first.id))
    assert [note["lock"] for note in told] == [key]
    worker.wait_for_log(f"jobs.held[{first.id}] lost its lease on {key}")
    ledger.open_gate("gate")
    assert first.get(timeout=10) == "a", "the outcome of a task does not change with its lease"
    worker.wait_for_log("ended (succeeded) after it lost its lease")
    assert holders(app, key) == ["another"]
    assert duplicate_of(app.tasks.quick.delay("a")).task_id == "another"


def test_a_deleted_record_is_a_lost_lease_too(start, ledger, valkey):
    app, _ = start()
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    valkey.client().delete(the_key(app))

    wait_until(lambda: ledger.notes("lease_lost", first.id))
    second = app.tasks.held.delay("a", "second")
    ledger.wait_for(2, "a", ended=False)
    ledger.open_gate("gate")
    assert first.get(timeout=10) == "a"
    assert duplicate_of(app.tasks.held.delay("a")).task_id == second.id
    assert len(ledger.notes("lease_lost")) == 1, "told once"


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_run_that_lost_its_lease_is_terminated_where_the_policy_says_so(start, ledger, pool):
    app, _ = start(pool, TERMINATE)
    first = app.tasks.held.delay("a", "never opened")
    ledger.wait_for(1, "a", ended=False)
    key = the_key(app)

    take_over(app, key)

    (run,) = ledger.wait_for(1, "a")
    assert run.outcome == "SoftTimeLimitExceeded"
    assert "SoftTimeLimitExceeded" in repr(first.get(timeout=10, propagate=False))
    assert holders(app, key) == ["another"]
    assert app.tasks.quick.delay("b").get(timeout=10) == "b", "the worker goes on"


def test_a_worker_that_was_away_for_longer_than_the_lease_learns_that_it_is_lost(start, ledger, workers):
    app, away = start()
    here = workers(app, f"--queues={app.queue}-2")
    app.tasks.fenced.delay("a", "first")
    (run,) = ledger.wait_for(1, "a", ended=False)
    wait_until(lambda: ledger.notes("lease", "a"))

    away.pause()

    # Copies are refused until the lease has ended.
    def runs_again():
        second = app.tasks.fenced.apply_async(("a", "second"), queue=f"{app.queue}-2")
        return wait_until(lambda: second.ready() or len(ledger.runs("a")) == 2) and len(ledger.runs("a")) == 2

    wait_until(runs_again)
    key = the_key(app)
    (owner,) = holders(app, key)
    away.resume()

    (told,) = wait_until(lambda: ledger.notes("lease_lost"))
    earlier, later = ledger.notes("lease", "a")
    assert told["key"] == run.task_id
    assert earlier["fence"] == told["fence"] < later["fence"]
    ledger.open_gate("first")
    away.wait_for_log("ended (succeeded) after it lost its lease")
    assert ledger.notes("lease_after", "a")[0]["lost"] is True
    assert holders(app, key) == [owner]
    ledger.open_gate("second")
    ledger.wait_for(2, "a")
    assert len(ledger.notes("lease_lost")) == 1
    assert "lost its lease" not in here.log


def test_the_fence_only_grows(start, ledger, valkey):
    app, _ = start(concurrency=1)

    for attempt in range(6):
        app.tasks.fenced.delay("a").get(timeout=10)
        if attempt % 2:
            valkey.client().flushdb()

    fences = [note["fence"] for note in ledger.notes("lease", "a")]
    assert len(fences) == 6
    assert fences == sorted(set(fences))
