from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.breaker import PAUSE, Breaker
from celery_dedupe.store.protocol import NotARecord


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("default", clock)


def fail() -> None:
    raise StoreUnavailable("the claim store did not answer: refused")


def never() -> None:
    raise AssertionError("the store was asked")


def refused(breaker: Breaker, verb: Callable[[], object]) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        breaker.call(verb)
    return str(raised.value)


def test_it_hands_on_what_the_store_says(breaker: Breaker) -> None:
    assert breaker.call(lambda: [True, False]) == [True, False]
    assert not breaker.open


def test_after_a_failure_nobody_asks_for_the_pause(breaker: Breaker, clock: Clock) -> None:
    assert refused(breaker, fail) == "the claim store did not answer: refused"
    assert breaker.open
    clock.now += PAUSE - 1
    assert refused(breaker, never) == "the claim store did not answer: refused (asked again in 1.0 s)"


def test_then_one_caller_probes_while_the_others_are_still_refused(breaker: Breaker, clock: Clock) -> None:
    refused(breaker, fail)
    clock.now += PAUSE

    def probe() -> str:
        refused(breaker, never)
        return "up"

    assert breaker.call(probe) == "up"
    assert not breaker.open
    assert breaker.call(lambda: 1) == 1


def test_a_probe_that_fails_opens_it_for_another_pause(breaker: Breaker, clock: Clock) -> None:
    refused(breaker, fail)
    clock.now += PAUSE
    refused(breaker, fail)
    clock.now += PAUSE - 0.1
    refused(breaker, never)
    clock.now += 0.1
    assert breaker.call(lambda: 1) == 1


def test_a_probe_that_is_cut_short_leaves_it_to_the_next(breaker: Breaker, clock: Clock) -> None:
    refused(breaker, fail)
    clock.now += PAUSE
    with pytest.raises(KeyboardInterrupt):
        breaker.call(_interrupt)
    refused(breaker, never)
    clock.now += PAUSE
    assert breaker.call(lambda: 1) == 1


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_key_that_is_not_ours_is_no_outage(breaker: Breaker) -> None:
    def foreign() -> None:
        raise NotARecord("dedupe:a:1")

    assert "dedupe:a:1" in refused(breaker, foreign)
    assert not breaker.open


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(
    breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "celery_dedupe"):
        for _ in range(3):
            refused(breaker, fail)
            clock.now += PAUSE
        for _ in range(3):
            breaker.call(lambda: 1)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "ERROR",
            "the claim store did not answer: refused; policies decide whether tasks go on unprotected. "
            "Asked again every 5 s",
        ),
        ("WARNING", "the claim store answers again"),
    ]


def test_whoever_waits_while_it_closes_asks_the_store(breaker: Breaker, clock: Clock) -> None:
    refused(breaker, fail)
    clock.now += PAUSE
    # A call that began before the outage comes back well while another waits its turn.
    turn = breaker._wait_turn

    def closed_meanwhile() -> None:
        breaker._recovered()
        turn()

    breaker._wait_turn = closed_meanwhile  # type: ignore[method-assign]
    assert breaker.call(lambda: 1) == 1
    assert not breaker.open
    assert breaker.call(lambda: 2) == 2
