"""The two races of sequential code (DESIGN 3), 500 rounds each, on two forked processes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Task

from celery_dedupe import duplicate_of
from tests.apps.assembly import AppUnderTest
from tests.apps.families import claims_left, note_events
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROUNDS = 500
LOCKS = ["until_finished", "while_running", "queue_and_run"]
RULES = {f"{lock}.*": {"lock": lock, "key": ["key"]} for lock in LOCKS}


class Lingering(Task):
    """Its result is there for all to see a while before its run has ended."""

    seconds = 0.005

    def after_return(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


def define_racers(under_test: AppUnderTest) -> None:
    app, ledger = under_test.app, under_test.ledger

    def work(self: Task, key: str) -> str:
        with ledger.run(self.name, key, self.request.id):
            return self.request.id

    def relay(self: Task, key: str, left: int) -> None:
        with ledger.run(self.name, key, self.request.id):
            if left:
                following = self.delay(key, left - 1)
                ledger.note("published", key, task_id=following.id)

    for lock in LOCKS:
        app.task(bind=True, shared=False, name=f"{lock}.work")(work)
        app.task(bind=True, shared=False, name=f"{lock}.lingering", base=Lingering)(work)
        app.task(bind=True, shared=False, name=f"{lock}.lingering_long", base=Lingering, seconds=0.3)(work)
        app.task(bind=True, shared=False, name=f"{lock}.relay")(relay)
    note_events(under_test)


def assert_free(app: AppUnderTest) -> None:
    wait_until(lambda: not claims_left(app), 10, lambda: "\n".join(claims_left(app)))


def call_again_and_again(app: AppUnderTest, task: Any, rounds: int) -> None:
    ids = []
    for _ in range(rounds):
        result = task.delay("key")
        assert duplicate_of(result) is None
        assert result.get(timeout=20, interval=0.001) == result.id
        ids.append(result.id)
    assert app.ledger.ids("key") == ids
    assert app.ledger.notes("refused") == [], "nor did any of them have to wait"
    assert app.ledger.overlaps("key") == []
    assert_free(app)


@pytest.mark.parametrize("name", ["work", "lingering"])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_call_made_after_its_predecessors_result_was_seen_runs(make_app, workers, lock, name):
    app = make_app(RULES, setup=define_racers)
    worker = workers(app, pool="prefork", concurrency=2)

    call_again_and_again(app, app.app.tasks[f"{lock}.{name}"], ROUNDS)

    assert "lost its lease" not in worker.log, "a slot that is ended for its run's result is not lost"


@pytest.mark.services
@pytest.mark.parametrize("lock", LOCKS)
def test_the_same_where_a_database_keeps_the_results(make_app, workers, rabbitmq_url, postgres_url, lock):
    app = make_app(RULES, setup=define_racers, broker=rabbitmq_url, backend=f"db+{postgres_url}")
    workers(app, pool="prefork", concurrency=2)

    call_again_and_again(app, app.app.tasks[f"{lock}.lingering_long"], 10)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_run_that_publishes_its_next_run_is_followed_by_it(make_app, workers, ledger, lock):
    app = make_app(RULES, setup=define_racers)
    workers(app, pool="prefork", concurrency=2)
    first = app.app.tasks[f"{lock}.relay"].delay("key", ROUNDS)

    runs = ledger.wait_for(ROUNDS + 1, "key", timeout=100)
    following = [note["task_id"] for note in ledger.notes("published")]
    assert [run.task_id for run in runs] == [first.id, *following]
    assert ledger.overlaps("key") == []
    assert_free(app)
