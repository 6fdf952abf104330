"""A run that lost its lease is stopped where its pool can be stopped, and nobody else is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import soft_timeout_sighandler

from celery_dedupe import interrupts

LONG_ENOUGH = 10.0


@pytest.fixture
def as_in_a_prefork_child():
    """Its main thread answers SIGUSR1 as Celery's soft time limit needs it."""
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def elsewhere():
    """``elsewhere(interrupt)``: calls it from another thread, which has ended before the test does."""
    threads: list[threading.Thread] = []

    def call(interrupt: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=interrupt))
        threads[-1].start()

    yield call
    for thread in threads:
        thread.join()


def test_a_prefork_child_is_woken_from_a_blocking_call(as_in_a_prefork_child, elsewhere):
    interrupt = interrupts.of_this_thread()
    read, write = os.pipe()

    def block() -> None:
        elsewhere(interrupt)
        os.read(read, 1)

    with pytest.raises(SoftTimeLimitExceeded):
        block()
    os.close(read)
    os.close(write)


def test_the_main_thread_elsewhere_is_stopped_when_it_next_runs_python(elsewhere):
    """The solo pool: nothing there answers SIGUSR1, which would kill the process."""
    assert signal.getsignal(signal.SIGUSR1) is not soft_timeout_sighandler
    interrupt = interrupts.of_this_thread()

    def spin() -> None:
        elsewhere(interrupt)
        deadline = time.monotonic() + LONG_ENOUGH
        while time.monotonic() < deadline:
            pass

    with pytest.raises(SoftTimeLimitExceeded):
        spin()


def test_of_several_threads_only_the_one_that_was_meant_is_stopped(as_in_a_prefork_child):
    ends: dict[str, str] = {}
    interrupts_of: dict[str, object] = {}
    ready, go_on = threading.Barrier(3), threading.Event()

    def run(name: str) -> None:
        interrupts_of[name] = interrupts.of_this_thread()
        try:
            ready.wait(LONG_ENOUGH)
            while not go_on.wait(0.01):
                pass
            ends[name] = "to its end"
        except SoftTimeLimitExceeded:
            ends[name] = "stopped"

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    ready.wait(LONG_ENOUGH)
    interrupts_of["a"]()
    threads[0].join(LONG_ENOUGH)
    go_on.set()
    threads[1].join(LONG_ENOUGH)
    assert ends == {"a": "stopped", "b": "to its end"}


def test_a_thread_that_has_ended_cannot_be_stopped_and_nothing_happens():
    made: list[object] = []
    thread = threading.Thread(target=lambda: made.append(interrupts.of_this_thread()))
    thread.start()
    thread.join()
    made[0]()
