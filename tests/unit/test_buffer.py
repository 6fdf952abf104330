"""What is gathered in a process reaches the store, whatever ends the process in good order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from celery_dedupe import buffer as buffer_module
from celery_dedupe.buffer import Buffer
from celery_dedupe.core.counts import COUNTED
from celery_dedupe.counters import Counters
from celery_dedupe.errors import StoreUnavailable
from tests.harness.waiting import wait_until
from tests.unit.conftest import Clock, TestedStore


class Sink:
    """Stands for the store."""

    def __init__(self) -> None:
        self.sent: list[dict[str, int]] = []
        self.error: Exception | None = None
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, gathered: Counter[str]) -> None:
        self.entered.set()
        assert self.go_on.wait(10)
        if self.error:
            raise self.error
        self.sent.append(dict(gathered))

    @property
    def total(self) -> Counter[str]:
        return sum(map(Counter, self.sent), Counter())


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def buffer(sink: Sink) -> Iterator[Buffer[Counter[str]]]:
    made = Buffer[Counter[str]](Counter, sink, Counter.update)
    yield made
    sink.go_on.set()
    made.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed on at once."""
    monkeypatch.setattr(buffer_module, "EVERY", 0.01)


def one(word: str) -> Callable[[Counter[str]], None]:
    return lambda gathered: gathered.update([word])


@pytest.fixture
def threads() -> Callable[[], int]:
    """``threads()``: how many have been started since by buffers, and live."""

    def living() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "celery-dedupe-buffer"}

    before = living()
    return lambda: len(living() - before)


def test_what_is_gathered_goes_out_in_one(buffer, sink):
    for word in "aab":
        buffer.add(one(word))
    assert sink.sent == []
    buffer.flush()
    assert sink.sent == [{"a": 2, "b": 1}]


def test_nothing_is_sent_where_nothing_is_there(buffer, sink):
    buffer.flush()
    buffer.add(one("a"))
    buffer.flush()
    buffer.flush()
    buffer.close()
    assert sink.sent == [{"a": 1}]


def test_it_goes_out_by_itself_again_and_again(soon, buffer, sink):
    for count in (1, 2, 3):
        buffer.add(one("a"))
        wait_until(lambda count=count: sink.total["a"] == count)


def test_a_process_that_gathers_nothing_has_no_thread(soon, buffer, threads):
    assert threads() == 0
    buffer.add(one("a"))
    assert threads() == 1
    buffer.close()
    wait_until(lambda: threads() == 0)


def test_while_the_store_is_away_it_waits_and_grows_no_longer_than_its_words(buffer, sink):
    sink.error = StoreUnavailable("away")
    for _ in range(3):
        buffer.add(one("a"))
        buffer.flush()
    assert sink.sent == []
    sink.error = None
    buffer.add(one("b"))
    buffer.flush()
    assert sink.sent == [{"a": 3, "b": 1}]


def test_it_goes_out_by_itself_when_the_store_is_back(soon, buffer, sink):
    sink.error = StoreUnavailable("away")
    buffer.add(one("a"))
    assert sink.entered.wait(10)
    sink.error = None
    wait_until(lambda: sink.sent == [{"a": 1}])


def test_a_bug_costs_numbers_and_no_task(buffer, sink, caplog):
    sink.error = ValueError("a bug")
    buffer.add(one("a"))
    buffer.flush()
    assert "The numbers of the last 5 s are lost; no task is" in caplog.text
    sink.error = None
    buffer.flush()
    assert sink.sent == []


def test_a_task_does_not_wait_for_the_store(buffer, sink):
    sink.go_on.clear()
    buffer.add(one("a"))
    flushing = threading.Thread(target=buffer.flush)
    flushing.start()
    assert sink.entered.wait(10)
    buffer.add(one("b"))  # It would hang here.
    sink.go_on.set()
    flushing.join()
    buffer.flush()
    assert sink.sent == [{"a": 1}, {"b": 1}]


def test_nothing_of_many_threads_is_lost(soon, buffer, sink):
    def add() -> None:
        for _ in range(500):
            buffer.add(one("a"))

    adding = [threading.Thread(target=add) for _ in range(4)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    wait_until(lambda: sink.total["a"] >= 2000)
    assert sink.total == {"a": 2000}


def test_the_handler_of_a_signal_may_add_in_the_midst_of_another(buffer, sink):
    def interrupted(gathered: Counter[str]) -> None:
        buffer.add(one("of the handler"))
        gathered.update(["of the task"])

    buffer.add(interrupted)
    buffer.flush()
    assert sink.total == {"of the handler": 1, "of the task": 1}


def test_a_machine_that_is_full_keeps_it_until_there_is_a_thread(soon, buffer, sink, monkeypatch):
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        buffer.add(one("a"))
    assert sink.sent == []
    buffer.add(one("a"))
    wait_until(lambda: sink.sent == [{"a": 2}])


def test_after_the_last_time_it_starts_no_thread(soon, buffer, threads):
    buffer.close()
    buffer.add(one("a"))
    assert threads() == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_sends_what_is_its_own(soon, buffer, sink):
    sink.error = StoreUnavailable("away")
    buffer.add(one("parent"))
    assert sink.entered.wait(10)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = b"?"
        try:
            sink.error = None
            buffer.add(one("child"))
            wait_until(lambda: sink.sent, 5)
            code = b"1" if sink.sent == [{"child": 1}] else b"0"
        finally:
            os.write(write, code)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"1"
    os.waitpid(child, 0)
    sink.error = None
    wait_until(lambda: sink.sent == [{"parent": 1}])


def test_the_end_of_the_interpreter_sends_what_is_left():
    program = """
        from collections import Counter
        from celery_dedupe.buffer import Buffer
        buffer = Buffer(Counter, lambda gathered: print(dict(gathered)), Counter.update)
        buffer.add(lambda gathered: gathered.update("aab"))
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("{'a': 2, 'b': 1}\n", "")


def test_memory_is_bounded_by_tasks_times_verdicts():
    counters = Counters(TestedStore(Clock()), "stats")
    for _ in range(1000):
        for word in COUNTED:
            counters.add("t", word)
    assert counters._buffer is not None
    assert len(counters._buffer._gathered) == len(COUNTED)
    counters.close()


def test_counting_can_be_left_out(threads):
    store = TestedStore(Clock())
    counters = Counters(store, "")
    counters.add("t", "started")
    counters.flush()
    counters.close()
    assert store.counts("") == {}
    assert threads() == 0
