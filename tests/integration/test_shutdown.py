"""Warm, soft and cold shutdown: what goes back to the queue keeps its claim, what is killed frees it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import celery
import pytest

from celery_dedupe import duplicate_of
from celery_dedupe.core.locks import LOCKS
from tests.apps.locks import call, define_by_lock, rules
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLAIMED = [lock for lock, traits in LOCKS.items() if traits.claims]


@dataclass
class Place:
    """An app with the tasks of every lock, and what starts a worker of a pool on it.

    Attributes:
        locks: those that a test has the time for.
    """

    under_test: Any
    pool: str
    start: Callable[..., Any]
    locks: list[str]

    def publish(self, task: str, *args: Any) -> dict[str, Any]:
        """The task under each lock; the results by lock."""
        return {lock: call(self.under_test.app, lock, task, f"{lock} {task}", *args) for lock in self.locks}

    def again(self, lock: str, task: str) -> Any:
        """The result of a publish under the key of a task before."""
        return call(self.under_test.app, lock, "quick", f"{lock} {task}")

    def outcomes(self, lock: str, task: str) -> list[str | None]:
        return [run.outcome for run in self.under_test.ledger.runs(f"{lock} {task}", task=f"{lock}.{task}")]

    def wait_started(self, *tasks: str) -> None:
        at_once = 1 if self.pool == "solo" else len(tasks) * len(self.locks)
        self.under_test.ledger.wait_for(at_once, ended=False)

    def holders(self) -> dict[str, set[str]]:
        """Ids of the tasks that hold each lock, queued or running."""
        found: dict[str, set[str]] = {lock: set() for lock in LOCKS}
        for key, record in self.under_test.dedupe.guard.store.scan("dedupe:*"):
            found[key.split(":")[1]] |= {part.task_id for part in (*record.queued, *record.running)}
        return found

    def see_accepted(self, lock: str, task: str) -> None:
        """A publish under the key is accepted and runs."""

        def runs() -> bool:
            result = self.again(lock, task)
            return (
                duplicate_of(result) is None and result.get(timeout=20, propagate=False) == f"{lock} {task}"
            )

        wait_until(runs, 30, lambda: f"{lock} is held: {self.holders()[lock]}", interval=0.2)


@pytest.fixture(
    params=[
        "prefork-redis",
        pytest.param("prefork-rabbitmq", marks=pytest.mark.services),
        "threads-redis",
        "solo-redis",
        "gevent-redis",
        "eventlet-redis",
    ]
)
def place(request, make_app, workers):
    pool, _, broker = request.param.partition("-")
    options = {"broker": request.getfixturevalue("rabbitmq_url")} if broker == "rabbitmq" else {}
    # Celery does not end these two in good order: what they had taken comes back by the visibility timeout.
    crashes = pool in ("gevent", "eventlet")
    conf = {"broker_transport_options": {"visibility_timeout": 3}} if crashes else {}
    # Longer than the test, where Celery says what becomes of a task that it kills.
    lease = 60 if pool == "prefork" else 4
    app = make_app(rules(lease=lease), setup=define_by_lock, conf=conf, **options)
    locks = ["until_finished", "once"] if pool == "solo" else list(LOCKS)  # one after the other
    return Place(app, pool, lambda: workers(app, pool=pool, concurrency=2 * len(LOCKS)), locks)


def test_a_warm_shutdown_gives_back_what_it_had_reserved(place, ledger):
    worker = place.start()
    running, late = place.publish("held"), place.publish("late_held")
    place.wait_started("held", "late_held")
    reserved = place.publish("quick")
    if place.pool == "prefork":
        for result in reserved.values():
            worker.wait_for_log(f"[{result.id}] received")

    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    ledger.open_gate("gate")
    worker.wait(30)

    gone_back = [lock for lock in place.locks if not place.outcomes(lock, "quick")]
    assert gone_back == place.locks or place.pool not in ("prefork", "solo")
    for lock in {*gone_back} & {*CLAIMED}:
        assert duplicate_of(place.again(lock, "quick")).task_id == reserved[lock].id, lock
    place.start()
    for lock in place.locks:
        for results, task in ((running, "held"), (late, "late_held"), (reserved, "quick")):
            assert results[lock].get(timeout=30) == f"{lock} {task}"
            assert place.outcomes(lock, task) == ["ok"], f"{lock} {task}"


def test_a_cold_shutdown_loses_nothing_that_comes_back_and_frees_the_rest(place, ledger):
    if place.pool == "solo" and (5, 5) <= celery.VERSION < (5, 7):
        pytest.skip("this Celery fails to stop a solo worker so")
    worker = place.start()
    seconds = 2 if place.pool == "solo" else 4
    early, late = place.publish("slow", seconds), place.publish("late_slow", seconds)
    place.wait_started("slow", "late_slow")

    worker.signal(signal.SIGQUIT)
    worker.wait(60)

    holders = place.holders()
    if place.pool == "prefork":
        for lock in LOCKS:
            assert place.outcomes(lock, "slow") == place.outcomes(lock, "late_slow") == ["SystemExit"]
        for lock in {*CLAIMED} - {
            "until_started",
            "until_expired",
        }:  # which ends at the start; which does not
            assert holders[lock] == {late[lock].id}, lock
            assert duplicate_of(place.again(lock, "late_slow")).task_id == late[lock].id, lock
    place.start()
    for lock in place.locks:
        wait_until(
            lambda lock=lock: "ok" in place.outcomes(lock, "late_slow") or late[lock].state == "FAILURE",
            60,
            lambda lock=lock: f"{lock} {late[lock].id} reaches no end",
        )
        if early[lock].state != "SUCCESS" and lock != "until_expired":
            place.see_accepted(lock, "slow")
    assert not ledger.overlaps()


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery has no soft shutdown before 5.5")
def test_a_soft_shutdown_waits_for_some(make_app, workers, ledger):
    app = make_app(rules(lease=60), setup=define_by_lock, conf={"worker_soft_shutdown_timeout": 3.0})
    place = Place(app, "prefork", lambda: workers(app, concurrency=2 * len(LOCKS)), list(LOCKS))
    worker = place.start()
    short, late = place.publish("held"), place.publish("late_slow", 7)
    place.wait_started("held", "late_slow")

    worker.signal(signal.SIGQUIT)
    worker.wait_for_log("Initiating Soft Shutdown")
    ledger.open_gate("gate")
    worker.wait(60)

    for lock in LOCKS:
        assert short[lock].get(timeout=10) == f"{lock} held"
        if lock not in ("until_expired", "once"):
            assert duplicate_of(place.again(lock, "held")) is None, lock
    for lock in {*CLAIMED} - {"until_started"}:
        assert duplicate_of(place.again(lock, "late_slow")).task_id == late[lock].id, lock
    place.start()
    for lock in LOCKS:
        assert late[lock].get(timeout=30) == f"{lock} late_slow"
        assert place.outcomes(lock, "late_slow") == ["SystemExit", "ok"]
    assert not ledger.overlaps()
