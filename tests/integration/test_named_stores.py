"""A task with a lock in Redis and one in PostgreSQL, on real prefork workers."""

from __future__ import annotations

import pytest

from celery_dedupe import StoreUnavailable, duplicate_of
from celery_dedupe.tables import claims, create_tables
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.services]

LEASE = 3
HERE = {"lock": "until_finished", "key": ["key"], "scope": "jobs", "lease": LEASE}
LEDGER = {"lock": "once", "key": ["key"], "scope": "jobs", "lease": LEASE, "store": "ledger"}
RULES = {
    "jobs.*": [HERE, LEDGER],
    "jobs.slow": [HERE, {**LEDGER, "on_store_error": "allow"}],
    "jobs.held": [HERE, {**LEDGER, "lock": "while_running"}],
}


@pytest.fixture
def ledger_url(postgres_url):
    create_tables(postgres_url, claims)
    return f"db+{postgres_url}"


@pytest.fixture
def app(make_app, ledger_url):
    return make_app(RULES, stores={"ledger": ledger_url})


def records(app):
    """What each store holds."""
    places = app.dedupe.guard.store.places
    return {name: dict(place.store.scan("dedupe:*")) for name, place in places.items()}


def runs(app):
    return {
        name: [run for record in found.values() for run in record.running]
        for name, found in records(app).items()
    }


def test_each_call_runs_once_under_both(app, workers, ledger):
    worker = workers(app)
    results = [[app.tasks.quick.delay(f"{number}") for _ in range(2)] for number in range(10)]
    assert [first.get(timeout=30) for first, _ in results] == [f"{number}" for number in range(10)]
    assert len(ledger.runs()) == 10
    wait_until(lambda: not records(app)["default"])
    assert all(record.done for record in records(app)["ledger"].values())
    found = duplicate_of(app.tasks.quick.delay("3"))
    assert (found.task_id, found.state) == (results[3][0].id, "done")
    assert found.key.startswith("ledger/dedupe:jobs:")
    (line,) = [line for line in worker.log.splitlines() if "all in place" in line]
    assert " and in PostgreSQL " in line


def test_both_leases_are_renewed_and_end_with_a_killed_worker(app, workers, ledger):
    worker = workers(app, concurrency=1)
    app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    first = {name: run.expires_at for name, (run,) in runs(app).items()}
    wait_until(lambda: all(runs(app)[name][0].expires_at > end + LEASE * 1000 for name, end in first.items()))

    worker.kill()
    wait_until(lambda: runs(app) == {"default": [], "ledger": []})
    workers(app)
    assert app.tasks.quick.delay("a").get(timeout=30) == "a"


def test_while_one_store_is_away_the_other_counts(make_app, workers, ledger, ledger_url, start_proxy):
    proxy = start_proxy(ledger_url)
    app, there = make_app(RULES, stores={"ledger": proxy.url}), make_app(RULES, stores={"ledger": ledger_url})
    workers(app)
    assert app.tasks.quick.delay("before").get(timeout=30) == "before"

    proxy.refuse()
    with pytest.raises(StoreUnavailable) as raised:
        app.tasks.quick.delay("a")
    assert raised.value.store == "ledger"
    assert not records(there)["default"], "what Redis gave is given back"
    first = app.tasks.slow.delay("a", 2.0)
    assert duplicate_of(app.tasks.slow.delay("a", 2.0)).task_id == first.id
    assert first.get(timeout=30) == "a"

    proxy.restore()
    wait_until(lambda: not app.dedupe.guard.store.open or publishes(app), 30, interval=0.5)
    assert duplicate_of(app.tasks.quick.delay("before")).state == "done"
    assert app.tasks.quick.delay("after").get(timeout=30) == "after"
    assert len(ledger.runs("a")) == 1


def publishes(app):
    try:
        app.tasks.quick.delay("before")
    except StoreUnavailable:
        return False
    return True


def test_without_redis_what_the_ledger_remembers_is_not_done_again(
    make_app, workers, ledger, ledger_url, start_valkey
):
    store = start_valkey()
    app = make_app(RULES, url=store.store_url, stores={"ledger": ledger_url})
    workers(app)
    first = app.tasks.quick.delay("a")
    assert first.get(timeout=30) == "a"

    store.kill()
    assert duplicate_of(app.tasks.quick.delay("a")).task_id == first.id
    assert app.tasks.quick.delay("b").get(timeout=30) == "b"
    assert [len(ledger.runs(key)) for key in "ab"] == [1, 1]


def test_a_claim_whose_run_ended_while_its_store_was_away_is_given_back_when_it_returns(
    make_app, workers, ledger, ledger_url, start_proxy
):
    proxy = start_proxy(ledger_url)
    app, there = make_app(RULES, stores={"ledger": proxy.url}), make_app(RULES, stores={"ledger": ledger_url})
    workers(app)
    result = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    assert len(runs(there)["ledger"]) == 1
    proxy.refuse()
    ledger.open_gate("gate")
    assert result.get(timeout=30) == "a"
    wait_until(lambda: not records(there)["default"])
    proxy.restore()
    wait_until(lambda: not runs(there)["ledger"])
