"""A task that publishes its own next run does so the same way every time: docs/self-publishing.md."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Task

from celery_dedupe import duplicate_of
from celery_dedupe.core.locks import LOCKS
from tests.apps.assembly import AppUnderTest
from tests.apps.families import claims_left, note_events
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

TIMES = 20
RULES: dict[str, dict[str, Any]] = {f"{lock}.*": {"lock": lock, "key": ["key"]} for lock in LOCKS}
RULES["until_expired.*"]["period"] = "1h"
# A next run waits whatever these say.
RULES["queue_and_run.*"]["wait_limit"] = "0.1s"
RULES["until_finished.*"]["on_conflict"] = "raise"
# Those that keep the next run from starting beside its predecessor, and run it; and those that do not.
SERIAL = [lock for lock, traits in LOCKS.items() if traits.runs and lock != "once"]
BESIDE = [lock for lock, traits in LOCKS.items() if not traits.runs]


def define_relays(under_test: AppUnderTest) -> None:
    """For each lock ``LOCK.relay``."""
    app, ledger = under_test.app, under_test.ledger

    def publish(task: Task, key: str, left: int, countdown: float | None) -> None:
        following = task.apply_async((key, left, countdown), countdown=countdown)
        found = duplicate_of(following)
        ledger.note("published", key, task_id=following.id, dropped=found.state if found else None)

    def relay(
        self: Task,
        key: str,
        left: int,
        countdown: float | None = None,
        copies: int = 1,
        then: str = "end",
    ) -> str:
        """Publishes its next run ``copies`` times, then goes on for a while. ``left`` runs are to follow."""
        with ledger.run(self.name, key, self.request.id):
            if then == "publish late":
                ledger.wait_gate(key)
            for _ in range(copies if left else 0):
                if then == "publish from a thread":
                    with ThreadPoolExecutor() as pool:
                        pool.submit(publish, self, key, left - 1, countdown).result()
                else:
                    publish(self, key, left - 1, countdown)
            if then == "wait for the next":
                wait_until(lambda: len(ledger.runs(key)) == 2)
            elif then == "hold":
                ledger.wait_gate(key)
            else:
                time.sleep(0.03)
            if then == "fail":
                raise ValueError(key)
            return key

    for lock in LOCKS:
        app.task(bind=True, shared=False, name=f"{lock}.relay")(relay)
    note_events(under_test)


@pytest.fixture
def app(make_app, workers):
    app = make_app(RULES, setup=define_relays)
    workers(app, pool="prefork", concurrency=2)
    return app


def relay(app: AppUnderTest, lock: str) -> Any:
    return app.app.tasks[f"{lock}.relay"]


def published(ledger: Any, key: str) -> list[str | None]:
    """For each publish from inside, the state of what it was a duplicate of, or ``None``."""
    return [note["dropped"] for note in ledger.notes("published", key)]


def assert_free(app: AppUnderTest) -> None:
    wait_until(lambda: not claims_left(app), 10, lambda: "\n".join(claims_left(app)))


@pytest.mark.parametrize("countdown", [None, 0.05])
def test_each_run_is_followed_by_the_next(app, ledger, countdown):
    for lock in (*SERIAL, *BESIDE):
        first = relay(app, lock).delay(lock, TIMES, countdown)

        runs = ledger.wait_for(TIMES + 1, lock, timeout=60)
        following = [note["task_id"] for note in ledger.notes("published", lock)]
        assert published(ledger, lock) == [None] * TIMES, lock
        assert [run.task_id for run in runs] == [first.id, *following], lock
        if lock in SERIAL:
            assert ledger.overlaps(lock) == [], lock
        assert app.app.AsyncResult(following[-1]).get(timeout=10) == lock
    assert_free(app)
    assert len(ledger.runs()) == (TIMES + 1) * len([*SERIAL, *BESIDE])


@pytest.mark.parametrize("countdown", [None, 0.05])
def test_once_the_work_is_done_its_next_run_is_revoked(app, ledger, countdown):
    keys = [f"once {number}" for number in range(TIMES)]
    for key in keys:
        assert relay(app, "once").delay(key, 1, countdown).get(timeout=10) == key
    for key in keys:
        (note,) = ledger.notes("published", key)
        assert note["dropped"] is None
        following = app.app.AsyncResult(note["task_id"])
        wait_until(lambda following=following: following.state == "REVOKED", 15, key)
    assert_free(app)
    assert sorted(run.key for run in ledger.runs()) == sorted(keys)


def test_the_next_run_follows_a_run_that_fails(app, ledger):
    for lock in LOCKS:
        relay(app, lock).delay(lock, 1, then="fail")
    for lock in LOCKS:
        outcomes = {run.outcome for run in ledger.wait_for(2, lock)}
        assert outcomes == {"ValueError", "ok"}, lock
    assert_free(app)
    assert len(ledger.runs()) == 2 * len(LOCKS)


def test_a_lock_that_ends_at_the_start_lets_the_next_run_start_beside_its_predecessor(app, ledger):
    for lock in BESIDE:
        relay(app, lock).delay(lock, 1, then="wait for the next")
        ledger.wait_for(2, lock)
        assert ledger.peak(lock) == 2, lock


def test_the_next_run_waits_for_its_predecessor_however_long(app, ledger):
    for lock in (*SERIAL, "once"):
        relay(app, lock).delay(lock, 1, then="hold")
        (note,) = wait_until(lambda lock=lock: ledger.notes("published", lock))
        waits = lambda note=note: ledger.notes("refused", note["task_id"])  # noqa: E731
        wait_until(lambda waits=waits: len(waits()) >= 4)
        assert {wait["decision"] for wait in waits()} == {"wait"}, lock
        assert len(ledger.runs(lock)) == 1, lock

        ledger.open_gate(lock)
        ledger.wait_for(1 if lock == "once" else 2, lock)
    assert_free(app)


def test_a_second_call_of_the_same_run_is_a_duplicate_of_its_first(app, ledger):
    for lock, traits in LOCKS.items():
        relay(app, lock).delay(lock, 1, 0.5, copies=2)

        wait_until(lambda lock=lock: len(published(ledger, lock)) == 2)
        assert published(ledger, lock) == [None, "queued" if traits.claims else None], lock
    assert_free(app)


def test_what_somebody_else_has_queued_is_the_next_run(app, ledger):
    relay(app, "queue_and_run").delay("key", 1, then="publish late")
    ledger.wait_for(1, "key", ended=False)
    others = relay(app, "queue_and_run").delay("key", 0)
    ledger.open_gate("key")

    runs = ledger.wait_for(2, "key")
    assert published(ledger, "key") == ["queued"]
    assert runs[1].task_id == others.id
    assert_free(app)


def test_a_thread_that_a_run_starts_is_not_inside_the_run(app, ledger):
    assert relay(app, "until_finished").delay("key", 1, then="publish from a thread").get(timeout=10)
    assert published(ledger, "key") == ["running"]
    assert_free(app)
    assert len(ledger.runs("key")) == 1
