"""Rates on real workers: no window has too many starts, and who waits comes back once, at his own slot."""

from __future__ import annotations

import pytest
from celery import chain, chord

from celery_dedupe import RateExceeded
from tests.apps.families import note_events
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

TASKS, RATE = 200, 20  # so many, so many a second


def define(under_test):
    note_events(under_test)


def rate_of_customer(args):
    """Looked up by its path: a lower rate for one customer."""
    return "1/h" if args[0].startswith("small") else "100/s"


def most_in_a_second(times):
    times = sorted(times)
    return max(sum(start <= other < start + 1 for other in times) for start in times)


class Watcher:
    """Looks at the record of the only rate there is.

    Attributes:
        starts: all that were seen there, by the store's clock in seconds.
    """

    def __init__(self, app):
        self.store = app.dedupe.guard.store
        self.starts = set()

    def pace(self):
        for _, record in self.store.scan("dedupe:*"):
            if record.pace:
                self.starts.update(start / 1e6 for start in record.pace.starts)
                return record.pace
        return None


def waits(ledger, task_id=None):
    return [note for note in ledger.notes("refused", task_id) if note["decision"] == "wait"]


def test_two_workers_keep_a_rate_and_nobody_comes_back_twice(make_app, workers, ledger):
    app = make_app({"jobs.quick": {"rate": f"{RATE}/s", "key": []}}, setup=define)
    for _ in range(2):
        workers(app, concurrency=4)
    watcher = Watcher(app)

    results = [app.tasks.quick.delay(f"k{number}") for number in range(TASKS)]

    wait_until(lambda: watcher.pace() and len(ledger.runs()) >= TASKS, 120)
    assert [result.get(timeout=20) for result in results] == [f"k{number}" for number in range(TASKS)]
    runs = ledger.runs()
    started = [run.started for run in runs]
    total, ideal = max(started) - min(started), TASKS / RATE
    print(  # noqa: T201 - what is measured and not asserted; pytest shows it with -s or on a failure
        f"{total:.2f} s, ideal {ideal:.0f} s; {len(waits(ledger)) / TASKS:.2f} reschedulings a task; "
        f"most starts in a second: {most_in_a_second(watcher.starts)} by the store's clock "
        f"({len(watcher.starts)} of them seen), {most_in_a_second(started)} by the bodies' own"
    )
    assert len(runs) == TASKS
    assert {run.attempt for run in runs} == {0}
    assert most_in_a_second(watcher.starts) <= RATE
    assert len(watcher.starts) > TASKS / 2
    assert len(waits(ledger)) <= 1.1 * TASKS
    assert total < 10 * ideal


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.services)])
def test_what_waits_keeps_its_chain_its_chord_and_its_retries(make_app, workers, ledger, kind, request):
    options = {"broker": request.getfixturevalue("rabbitmq_url")} if kind == "rabbitmq" else {}
    rules = {f"jobs.{name}": {"rate": "3/s", "key": []} for name in ("quick", "retries")}
    app = make_app(rules, setup=define, **options)
    workers(app, concurrency=4)
    tasks = app.tasks

    together = chord([tasks.quick.s(f"m{number}") for number in range(8)], tasks.gather.s("body")).delay()
    one = chain(tasks.quick.s("head"), tasks.append.s("tail")).delay()
    again = tasks.retries.apply_async(("r", 3))

    assert together.get(timeout=60) == [f"m{number}" for number in range(8)]
    assert one.get(timeout=60) == ["head", "tail"]
    assert again.get(timeout=60) == "r"
    assert [run.attempt for run in ledger.runs("r")] == [0, 1, 2, 3], "max_retries is 3, and no wait counts"
    assert [len(ledger.runs(key)) for key in ("body", "tail", "m7", "head")] == [1, 1, 1, 1]
    assert waits(ledger)


def test_a_revoked_waiter_gives_its_slot_to_the_next(make_app, workers, ledger):
    app = make_app({"jobs.quick": {"rate": "1/h", "key": []}}, setup=define)
    workers(app)
    watcher, quick = Watcher(app), app.tasks.quick
    assert quick.delay("first").get(timeout=30) == "first"
    first, second = (quick.delay(name) for name in ("second", "third"))
    for result in (first, second):
        wait_until(lambda result=result: waits(ledger, result.id), 30)
    tail = watcher.pace().tail

    app.app.control.revoke(first.id)

    wait_until(lambda: watcher.pace().freed, 30, "the revoked one's slot is not given back")
    third = quick.delay("fourth")
    wait_until(lambda: waits(ledger, third.id), 30)
    assert (watcher.pace().freed, watcher.pace().tail) == ((), tail)
    assert [run.key for run in ledger.runs()] == ["first"]


def test_a_rate_beside_locks_and_rates_that_are_worked_out(make_app, workers, ledger):
    path = f"{__name__}.{rate_of_customer.__name__}"
    rules = {
        "jobs.quick": [
            {"lock": "until_started"},
            {"lock": "while_running", "key": [], "limit": 4, "on_conflict": "wait"},
            {"rate": path, "key": ["key"]},
        ],
        "jobs.slow": {"rate": "1/h", "key": [], "on_conflict": "raise"},
    }
    app = make_app(rules, setup=define)
    workers(app, concurrency=4)
    quick = app.tasks.quick

    assert [quick.delay("big", n).get(timeout=30) for n in range(3)] == [0, 1, 2]
    assert quick.delay("small", 1).get(timeout=30) == 1
    late = quick.delay("small", 2)
    assert wait_until(lambda: waits(ledger, late.id), 30)
    assert quick.delay("small", 2).id == late.id, "it waits in the queue, and is not called twice"
    assert late.state == "PENDING"

    assert app.tasks.slow.delay("s", 0).get(timeout=30) == "s"
    with pytest.raises(RateExceeded) as caught:
        app.tasks.slow.delay("s", 0).get(timeout=30)
    assert 0 < caught.value.available_in < 3601
