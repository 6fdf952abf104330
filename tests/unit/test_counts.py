"""Each publish and each start is counted for what became of it, once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import chain
from celery.app.task import Task

from celery_dedupe import buffer as buffer_module
from celery_dedupe.core.counts import COUNTED, HOUR, KEPT, Line, hours, lines
from celery_dedupe.errors import DuplicateTask, StoreUnavailable
from tests.harness.waiting import wait_until
from tests.unit.conftest import LocalApp


def counted(a: LocalApp) -> dict[str, int]:
    """What was counted of the task ``t``, by the word."""
    a.dedupe.guard.counters.flush()
    counts = a.store.counts("dedupe:stats")
    assert {task for task, _ in counts} <= {"t"}
    return {word: number for (_, word), number in counts.items()}


def running(a: LocalApp, task: Task[Any, Any]) -> tuple[threading.Event, threading.Thread]:
    """A call of the task that runs until the event is set."""
    go_on, entered = threading.Event(), threading.Event()
    task.hold = lambda: (entered.set(), go_on.wait(10))
    thread = threading.Thread(target=a.start, args=a.messages())
    thread.start()
    assert entered.wait(10)
    del task.hold
    return go_on, thread


def held(task: Any, value: Any) -> None:
    getattr(task, "hold", lambda: None)()


def test_a_call_and_its_duplicates(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    for _ in range(3):
        t.delay(1)
    a.run_next()
    assert counted(a) == {"published": 1, "dropped": 2, "started": 1}


def test_a_lock_that_claims_nothing_counts_publishes_all_the_same(local_app):
    a = local_app({"t": "while_running"})
    a.task().delay(1)
    assert counted(a) == {"published": 1}


def test_a_duplicate_that_is_an_error(local_app):
    a = local_app({"t": {"on_duplicate": "raise"}})
    t = a.task()
    t.delay(1)
    with pytest.raises(DuplicateTask):
        t.delay(1)
    assert counted(a) == {"published": 1, "dropped": 1}


@pytest.mark.parametrize(
    ("on_conflict", "word"), [("skip", "skipped"), ("raise", "skipped"), ("wait", "waited")]
)
def test_a_start_that_meets_a_running_one(local_app, on_conflict, word):
    a = local_app({"t": {"lock": "while_running", "on_conflict": on_conflict}})
    t = a.task(held)
    t.delay(1)
    go_on, first = running(a, t)
    t.delay(1)
    a.run_next()
    go_on.set()
    first.join()
    assert counted(a) == {"published": 2, "started": 1, word: 1}
    assert a.waiting() == (on_conflict == "wait"), "its message is no publish, though it is sent again"


@pytest.mark.parametrize(
    ("on_conflict", "word"), [("skip", "skipped"), ("raise", "skipped"), ("wait", "waited")]
)
def test_a_start_that_its_rate_does_not_allow(local_app, on_conflict, word):
    a = local_app({"t": {"rate": "1/m", "key": [], "on_conflict": on_conflict}})
    t = a.task()
    for value in (1, 2):
        t.delay(value)
        a.run_next()
    assert counted(a) == {"published": 2, "started": 1, word: 1}


def test_a_retry_is_no_other_call(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task(lambda task, value: None if task.request.retries else task.retry(countdown=0))
    t.delay(1)
    a.run_next()
    a.run_next()
    assert counted(a) == {"published": 1, "started": 2}


def test_a_copy_of_a_message_is_nothing(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    t.delay(1)
    (message,) = a.messages()
    a.start(message)
    a.start(message, redelivered=True)
    assert counted(a) == {"published": 1, "started": 1}


def test_a_message_that_kills_its_process(local_app, monkeypatch):
    a = local_app({"t": {"lock": "while_running", "max_deliveries": 1}})

    def die(task: Any, value: Any) -> None:
        raise RuntimeError

    a.task(die).delay(1)
    (message,) = a.messages()
    with monkeypatch.context() as patch:
        patch.setattr("celery_dedupe.guard.runs.finish", lambda *_: None)
        a.start(message)
    a.clock.turn(61)
    a.start(message, redelivered=True)
    assert counted(a) == {"published": 1, "started": 1, "poisoned": 1}


def test_a_publish_that_fails_is_none(local_app, monkeypatch):
    a = local_app({"t": "until_finished"})
    t = a.task()

    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionError("broker away")

    monkeypatch.setattr(a.app.amqp, "send_task_message", broken)
    with pytest.raises(ConnectionError):
        t.delay(1)
    assert counted(a) == {}


def test_a_task_that_no_rule_reaches_is_not_counted(local_app):
    a = local_app({"t": "until_finished"})
    a.task(name="other").delay(1)
    a.run_next()
    a.task().apply_async((1,), dedupe=False)
    a.run_next()
    assert a.ran == [1, 1]
    assert counted(a) == {}


def test_what_goes_on_without_the_store_is_counted_when_it_is_back(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    a.store.down = True
    a.store.count = lambda *_: a.store._ask("read")  # So that it is down for this as well.
    t.delay(1)
    a.run_next()
    a.dedupe.guard.counters.flush()
    assert a.store.counts("dedupe:stats") == {}
    a.store.down = False
    del a.store.count
    assert counted(a) == {"published": 1, "started": 1, "unprotected": 2}


def test_a_start_that_waits_for_the_store(local_app):
    a = local_app({"t": "once"})
    t = a.task()
    t.delay(1)
    a.store.down = True
    with pytest.raises(StoreUnavailable):
        t.delay(2)
    a.run_next()
    assert counted(a) == {"published": 1, "waited": 1}


def test_a_start_that_cannot_decide(local_app, monkeypatch):
    a = local_app({"t": "until_finished"})
    a.task().delay(1)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr("celery_dedupe.guard.runs.begin", broken)
    a.run_next()
    assert counted(a) == {"published": 1, "started": 1, "unprotected": 1}


def test_a_lease_that_is_lost(local_app):
    a = local_app({"t": {"lock": "while_running", "lease": "0.2s"}})

    def outlive(task: Any, value: Any) -> None:
        a.clock.turn(10)
        wait_until(lambda: counted(a).get("lease_lost"))

    a.task(outlive).delay(1)
    a.run_next()
    assert counted(a) == {"published": 1, "started": 1, "lease_lost": 1}


class TestObserved:
    def test_what_would_be_dropped_would_not_start(self, local_app):
        a = local_app({"t": "until_finished"}, mode="observe")
        t = a.task(held)
        t.delay(1)
        go_on, first = running(a, t)
        for _ in range(2):
            t.delay(1)
        for message in a.messages():
            a.start(message)
        go_on.set()
        first.join()
        assert counted(a) == {"published": 3, "would_drop": 2, "started": 3}

    @pytest.mark.parametrize(("on_conflict", "word"), [("skip", "would_skip"), ("wait", "would_wait")])
    def test_what_would_not_start(self, local_app, on_conflict, word):
        a = local_app({"t": {"lock": "while_running", "on_conflict": on_conflict, "observe": True}})
        t = a.task(held)
        t.delay(1)
        go_on, first = running(a, t)
        t.delay(1)
        a.run_next()
        go_on.set()
        first.join()
        assert counted(a) == {"published": 2, "started": 2, word: 1}

    def test_what_another_lock_drops_is_dropped(self, local_app):
        observing = {"lock": "until_finished", "observe": True}
        a = local_app({"t": [observing, {"lock": "queue_and_run", "key": []}]})
        t = a.task()
        t.delay(1)
        t.delay(1)
        assert counted(a) == {"published": 1, "dropped": 1}

    def test_what_others_wait_for_would_go_out(self, local_app):
        a = local_app({"t": "until_finished"}, mode="observe")
        t = a.task()
        t.delay(1)
        chain(t.si(1), t.si(2)).delay()
        assert counted(a) == {"published": 2}


def test_they_go_out_by_themselves(local_app, monkeypatch):
    monkeypatch.setattr(buffer_module, "EVERY", 0.01)
    a = local_app({"t": "until_finished"})
    a.task().delay(1)
    wait_until(lambda: a.store.counts("dedupe:stats") == {("t", "published"): 1})


def test_an_extension_that_is_closed_has_told_them(local_app):
    a = local_app({"t": "until_finished"})
    a.task().delay(1)
    a.store.close = lambda: None
    a.dedupe.close()
    assert a.store.counts("dedupe:stats") == {("t", "published"): 1}


def test_counting_can_be_left_out(local_app):
    a = local_app({"t": "until_finished"}, stats=False)
    a.task().delay(1)
    assert counted(a) == {}


class TestLines:
    def test_one_a_task_the_most_called_first(self):
        counts = {("b", "published"): 1, ("a", "dropped"): 2, ("c", "started"): 3, ("d", "published"): 1}
        found = lines(counts)
        assert [line.task for line in found] == ["a", "b", "d", "c"]
        assert all(list(line.counts) == list(COUNTED) for line in found)
        assert found[0].counts["dropped"] == 2

    def test_what_a_newer_version_counts_is_left_out(self):
        (line,) = lines({("a", "published"): 1, ("a", "tomorrow's word"): 7})
        assert sum(line.counts.values()) == 1

    @pytest.mark.parametrize(
        ("counts", "saved", "would_save"),
        [
            ({}, 0.0, 0.0),
            ({"published": 1}, 0.0, 0.0),
            ({"published": 1, "dropped": 3}, 0.75, 0.0),
            ({"published": 4, "dropped": 0, "skipped": 1, "waited": 9}, 0.25, 0.0),
            ({"published": 4, "would_drop": 2, "would_skip": 1, "would_wait": 1}, 0.0, 0.75),
            ({"published": 1, "skipped": 3}, 1.0, 0.0),
            ({"skipped": 3, "started": 1}, 1.0, 0.0),
        ],
    )
    def test_the_share_that_is_saved(self, counts, saved, would_save):
        line = Line("t", {word: counts.get(word, 0) for word in COUNTED})
        assert (line.saved, line.would_save) == (saved, would_save)

    def test_hours_are_those_that_are_kept(self):
        now = 1000 * HOUR + 5
        assert hours(now - 2 * HOUR, now) == range(998, 1001)
        assert hours(now, now) == range(1000, 1001)
        assert len(hours(0, now)) == KEPT // HOUR
