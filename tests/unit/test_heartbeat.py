"""Leases are renewed while their runs last, and no longer; what is lost is told once."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from celery_dedupe import heartbeat as heartbeat_module
from celery_dedupe.core.asks import LeaseAsk
from celery_dedupe.errors import LeaseLost, StoreUnavailable
from celery_dedupe.heartbeat import Heartbeat, Lease
from tests.harness.waiting import remains_true, wait_until

SHORT = 0.15  # seconds; renewed every third of it


class Book:
    """Stands for the store: remembers who asked, and answers as told."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.lost: set[str] = set()
        self.away: set[str] = set()
        self.error: Exception | None = None
        self.told: list[Lease] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool | None]:
        self.rounds.append(sorted(ask.key for ask in asks))
        self.entered.set()
        assert self.go_on.wait(10)
        if self.error:
            raise self.error
        return [None if ask.key in self.away else ask.key not in self.lost for ask in asks]


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def beat(book: Book, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heartbeat]:
    monkeypatch.setattr(heartbeat_module, "AGAIN", 0.05)
    heartbeat = Heartbeat(book.renew, book.told.append)
    yield heartbeat
    book.go_on.set()
    heartbeat.stop()


def lease(key: str = "k", seconds: float = SHORT, interrupt: Callable[[], None] | None = None) -> Lease:
    return Lease(key, f"token of {key}", 1, seconds, "t", f"id of {key}", interrupt)


def running() -> bool:
    return any(thread.name == "celery-dedupe-heartbeat" for thread in threading.enumerate())


def test_a_process_without_leases_has_no_thread(beat):
    assert not running()


def test_a_lease_outlives_its_length_while_the_run_lasts(beat, book):
    """Case 13."""
    held = lease()
    taken = held.renewed_at
    beat.hold([held])
    wait_until(lambda: held.renewed_at > taken + 2 * SHORT)
    assert not held.lost
    assert not book.told


def test_all_leases_of_a_process_are_renewed_in_one_call(beat, book):
    few, many = [lease("short")], [lease(f"long{n}", 60.0) for n in range(50)]
    beat.hold(many)
    beat.hold(few)
    wait_until(lambda: book.rounds)
    assert len(book.rounds[0]) == 51


def test_a_lease_is_renewed_after_a_third_of_its_time_and_not_before(beat, book):
    held = lease(seconds=0.6)
    taken = held.renewed_at
    assert held.due - taken == pytest.approx(0.2)
    beat.hold([held])
    wait_until(lambda: book.rounds)
    assert time.monotonic() - taken >= 0.2


def test_a_dropped_lease_is_renewed_no_more(beat, book):
    held = lease()
    beat.hold([held])
    wait_until(lambda: book.rounds)
    beat.drop([held])
    count = len(book.rounds)
    remains_true(lambda: len(book.rounds) <= count + 1, 3 * SHORT)


def test_a_lost_lease_is_told_once_and_stops_its_run(beat, book):
    """Case 15."""
    stopped: list[str] = []
    gone, kept = lease("gone", interrupt=lambda: stopped.append("gone")), lease("kept")
    book.lost.add("gone")
    beat.hold([gone, kept])
    wait_until(lambda: book.told)
    wait_until(lambda: len(book.rounds) >= 4)
    assert book.told == [gone]
    assert stopped == ["gone"]
    assert gone.lost
    assert gone.expires_in == 0
    with pytest.raises(LeaseLost, match=r"t\[id of gone\] no longer holds gone: another run may have it"):
        gone.ensure()
    assert not kept.lost
    assert book.rounds[-1] == ["kept"]


def test_a_run_that_has_just_ended_is_never_told_of_a_loss(beat, book):
    """The renewal is on its way when the run frees its slot: the store finds none."""
    stopped: list[str] = []
    held = lease(interrupt=lambda: stopped.append("k"))
    book.lost.add("k")
    book.go_on.clear()
    beat.hold([held])
    assert book.entered.wait(10)
    beat.drop([held])
    book.go_on.set()
    beat.stop()
    assert book.rounds == [["k"]]
    assert not book.told
    assert not stopped
    assert not held.lost


def test_a_lease_runs_out_by_its_own_clock_when_the_store_is_silent(beat, book):
    book.error = StoreUnavailable("away")
    held = lease()
    beat.hold([held])
    wait_until(lambda: held.expires_in == 0)
    with pytest.raises(LeaseLost):
        held.ensure()
    assert not held.lost, "nobody has said so"


def test_an_error_does_not_end_the_heartbeat(beat, book, caplog):
    book.error = ValueError("a bug")
    held = lease()
    beat.hold([held])
    wait_until(lambda: len(book.rounds) >= 2)
    book.error = None
    seen = len(book.rounds)
    wait_until(lambda: len(book.rounds) > seen + 1)
    assert "The heartbeat failed and goes on" in caplog.text


def test_a_store_that_is_away_costs_the_leases_of_another_nothing(beat, book, caplog):
    book.away = {"away"}
    away, there = lease("away"), lease("there")
    sent = threading.Event()
    beat.hold([away, there])
    beat.release_later(sent.set, 60)
    wait_until(lambda: len(book.rounds) >= 3)
    assert away.renewed_at < there.renewed_at
    assert sent.is_set(), "nor do releases wait for it"
    assert not book.told
    assert not caplog.records

    book.away.clear()
    before = there.renewed_at
    wait_until(lambda: away.renewed_at > before)
    assert set(beat.held()) == {away, there}


def test_the_lease_of_a_run_that_vanished_is_renewed_no_more(beat, book):
    """An interrupt in the middle of a run's finish must not hold its lock while the process lives."""
    held = lease()
    beat.hold([held])
    wait_until(lambda: book.rounds)
    del held
    gc.collect()
    assert beat.held() == []


def test_the_thread_is_one_and_ends_on_stop(beat, book):
    a, b = lease("a"), lease("b")
    beat.hold([a])
    beat.hold([b])
    assert [thread.name for thread in threading.enumerate()].count("celery-dedupe-heartbeat") == 1
    beat.stop()
    assert not running()


def test_it_starts_again_after_a_stop(beat, book):
    beat.stop()
    held = lease()
    beat.hold([held])
    wait_until(lambda: len(book.rounds) >= 2)


def test_a_failed_release_is_tried_until_it_goes_through(beat):
    """Case 11."""
    tries: list[int] = []

    def send() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise StoreUnavailable("away")

    beat.release_later(send, within=60)
    wait_until(lambda: len(tries) == 3)
    remains_true(lambda: len(tries) == 3, 0.2)


def test_a_release_is_given_up_when_what_it_frees_has_ended(beat):
    tries: list[int] = []

    def send() -> None:
        tries.append(1)
        raise StoreUnavailable("away")

    beat.release_later(send, within=0.2)
    wait_until(lambda: tries)
    wait_until(lambda: not beat._releases)
    assert tries


def test_releases_do_not_keep_one_another_from_being_sent(beat, caplog):
    sent: list[str] = []

    def broken() -> None:
        raise ValueError("a bug")

    def away() -> None:
        raise StoreUnavailable("away")

    for send in (broken, away, lambda: sent.append("last")):
        beat.release_later(send, within=60)
    wait_until(lambda: sent)
    assert "A release failed" in caplog.text


def test_stopping_sends_what_is_still_to_be_released(beat, monkeypatch):
    monkeypatch.setattr(heartbeat_module, "AGAIN", 60.0)
    sent: list[str] = []
    beat.release_later(lambda: sent.append("now"), within=60)
    beat.stop()
    assert sent == ["now"]


def test_renewals_go_on_while_releases_fail(beat, book):
    held = lease()
    beat.hold([held])

    def away() -> None:
        raise StoreUnavailable("away")

    beat.release_later(away, within=60)
    wait_until(lambda: len(book.rounds) >= 4)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_holds_none_of_its_parents_leases_and_beats_by_itself(beat, book):
    mine = lease("parent's")
    beat.hold([mine])
    wait_until(lambda: book.rounds)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = b"?"
        try:
            book.rounds = []
            inherited = beat.held()
            own = lease("child's")
            beat.hold([own])
            wait_until(lambda: len(book.rounds) >= 2, 5)
            code = b"1" if not inherited and book.rounds[-1] == ["child's"] else b"0"
        finally:
            os.write(write, code)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"1"
    os.waitpid(child, 0)
    seen = len(book.rounds)
    wait_until(lambda: len(book.rounds) > seen)
    assert book.rounds[-1] == ["parent's"]
