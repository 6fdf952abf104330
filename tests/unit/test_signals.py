"""Whoever listens is told, with one frozen object, and cannot do harm."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from celery_dedupe import Duplicate, signals

FOUND = Duplicate("holder", "t", "running", 1.0, "k")
EVENTS = {
    signals.publish_dropped: signals.PublishDropped("t", "id", "once", FOUND, False),
    signals.run_refused: signals.RunRefused("t", "id", "skip", FOUND, 0.0, "duplicate", False),
    signals.lock_taken: signals.LockTaken("t", "id", "running", ("k",), (1,)),
    signals.lock_released: signals.LockReleased("t", "id", ("k",), "succeeded"),
    signals.lease_lost: signals.LostLease("t", "id", "k", 1),
    signals.ran_unprotected: signals.RanUnprotected("t", "id", "start", "away"),
}


@pytest.fixture(params=EVENTS, ids=lambda signal: signal.name)
def signal(request):
    yield request.param
    request.param.receivers.clear()
    request.param._clear_state()


def test_a_receiver_gets_the_app_and_the_event(signal):
    told: list[Any] = []

    def note(app: Any, event: Any) -> None:
        told.append((app, event))

    signal.connect(note)
    signals.emit(signal, "app", EVENTS[signal])
    assert told == [("app", EVENTS[signal])]


def test_a_receiver_may_listen_to_one_app(signal):
    told: list[Any] = []

    def note(app: Any, event: Any) -> None:
        told.append(app)

    mine, other = object(), object()
    signal.connect(note, sender=mine)
    for app in (mine, other):
        signals.emit(signal, app, EVENTS[signal])
    assert told == [mine]


def test_a_receiver_that_raises_stops_nobody(signal, log):
    told: list[int] = []

    def stumble(app: Any, event: Any) -> None:
        told.append(1)
        raise ValueError("a receiver's own")

    def note(app: Any, event: Any) -> None:
        told.append(2)

    def stumble_too(app: Any, event: Any) -> None:
        told.append(3)
        raise KeyError

    for receiver in (stumble, note, stumble_too):
        signal.connect(receiver)
    signals.emit(signal, "app", EVENTS[signal])
    assert sorted(told) == [1, 2, 3]
    assert log.text.count(f"A receiver of {signal.name} raised; the task goes on") == 2


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
def test_an_event_is_frozen_and_can_be_sent_elsewhere(event):
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        event.task = "another"
    assert pickle.loads(pickle.dumps(event)) == event
    assert event.task == "t"
    assert event.task_id == "id"


def test_a_publish_and_a_run_are_told_in_order(local_app):
    a = local_app({"t": "until_finished"})
    t = a.task()
    first = t.delay(1)
    second = t.delay(1)
    a.run_next()
    kinds = [type(event) for event in a.events]
    assert kinds == [signals.LockTaken, signals.PublishDropped, signals.LockTaken, signals.LockReleased]
    dropped = a.events[1]
    assert (dropped.task, dropped.lock, dropped.observed) == ("t", "until_finished", False)
    assert dropped.task_id not in (first.id, second.id), "of the call that was turned away"
    assert dropped.duplicate.task_id == first.id
    assert a.events[2].fences[0] > 0
    assert a.events[3].outcome == "succeeded"


def test_a_receiver_that_raises_changes_no_task(local_app):
    a = local_app({"t": "until_finished"})

    def stumble(app: Any, event: Any) -> None:
        raise ValueError

    for signal in EVENTS:
        signal.connect(stumble, sender=a.app)
    try:
        t = a.task()
        result = t.delay(1)
        assert t.delay(1).id == result.id
        a.run_next()
        assert result.get(timeout=5) == 1
        assert a.ran == [1]
    finally:
        for signal in EVENTS:
            signal.disconnect(stumble, sender=a.app)
