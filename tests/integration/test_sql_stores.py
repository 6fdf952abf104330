"""Claims in a database, with real prefork workers."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, select

from celery_dedupe import duplicate_of
from celery_dedupe.tables import claims, create_tables
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

LEASE = 3
RULES = {"jobs.*": {"lock": "until_finished", "key": ["key"], "scope": "jobs", "lease": LEASE}}
SERVICES = [
    pytest.param("postgres", marks=pytest.mark.services),
    pytest.param("mariadb", marks=pytest.mark.services),
]


@pytest.fixture(params=["sqlite", *SERVICES])
def store_url(request, tmp_path):
    if request.param == "sqlite":
        return f"db+sqlite:///{tmp_path}/claims.sqlite"
    url = f"db+{request.getfixturevalue(f'{request.param}_url')}"
    create_tables(url, claims)
    return url


def rows(url):
    engine = create_engine(url.removeprefix("db+"))
    with engine.connect() as connection:
        found = connection.execute(select(claims.c.key)).scalars().all()
    engine.dispose()
    return found


def test_each_call_runs_once_and_leaves_no_row(make_app, workers, ledger, store_url):
    app = make_app(RULES, url=store_url)
    keys = [f"{number}" for number in range(30)]
    results = [[app.tasks.quick.delay(key) for _ in range(3)] for key in keys]
    for first, *others in results:
        assert [duplicate_of(result).task_id for result in others] == [first.id, first.id]

    worker = workers(app, concurrency=4)
    assert [first.get(timeout=30) for first, *_ in results] == keys
    assert sorted(run.key for run in ledger.runs()) == sorted(keys)
    wait_until(lambda: not rows(store_url))
    assert "celery-dedupe: all in place: enforce, " in worker.log
    assert [app.tasks.quick.delay("again").get(timeout=30) for _ in range(5)] == ["again"] * 5


def test_a_lease_is_renewed_and_a_killed_workers_ends(make_app, workers, ledger, store_url):
    app = make_app(RULES, url=store_url)
    worker = workers(app, concurrency=1)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)
    store = app.dedupe.guard.store
    ((key, record),) = store.scan("dedupe:*")
    wait_until(lambda: store.read(key).running[0].expires_at > record.running[0].expires_at + LEASE * 1000)
    assert duplicate_of(app.tasks.held.delay("a")).state == "running"

    worker.kill()
    wait_until(lambda: not store.read(key).running)
    workers(app)
    second = app.tasks.quick.delay("a")
    assert second.id != first.id
    assert second.get(timeout=30) == "a"


@pytest.mark.parametrize("database", SERVICES)
def test_a_worker_does_not_start_without_the_table(make_app, workers, request, database):
    url = f"db+{request.getfixturevalue(f'{database}_url')}"
    app = make_app(RULES, url=url)

    worker = workers(app, ready=False)
    assert worker.wait(30) != 0
    (line,) = [line for line in worker.log.splitlines() if "celery-dedupe" in line]
    assert "celery-dedupe: the claim store has no table celery_dedupe_claims: make it with a mig" in line
    assert "Traceback" not in worker.log

    # Publishes go on, for so the policy says, and the log says why.
    assert duplicate_of(app.tasks.quick.delay("a")) is None
    create_tables(url, claims)
    workers(app)
