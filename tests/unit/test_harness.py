"""The parts of the harness that need no process of their own."""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness.ledger import Ledger
from tests.harness.servers import require_service
from tests.harness.waiting import remains_true, wait_until


def test_waiting_returns_the_value_and_fails_with_the_message():
    values = iter([0, None, "", "there"])
    assert wait_until(lambda: next(values)) == "there"
    with pytest.raises(TimeoutError, match=r"not within 0\.02 s: the moon"):
        wait_until(lambda: False, 0.02, "the moon")
    with pytest.raises(TimeoutError, match="still 3"):
        wait_until(lambda: False, 0.02, lambda: f"still {3}")


def test_remaining_true_fails_as_soon_as_it_is_not():
    remains_true(lambda: True, 0.02)
    values = iter([True, True, False])
    with pytest.raises(AssertionError, match="only: quiet"):
        remains_true(lambda: next(values), 5, "quiet")


def test_a_run_has_an_outcome_and_none_while_it_lasts(ledger):
    with ledger.run("jobs.x", 7, "id1", attempt=2):
        (run,) = ledger.runs(7)
        assert (run.task, run.key, run.task_id, run.pid) == ("jobs.x", "7", "id1", os.getpid())
        assert (run.attempt, run.outcome, run.ended) == (2, None, None)
    with pytest.raises(KeyError), ledger.run("jobs.y", 7, "id2"):
        raise KeyError("x")

    first, second = ledger.wait_for(2, 7)
    assert first.started <= first.ended <= second.started
    assert [first.outcome, second.outcome] == ["ok", "KeyError"]
    assert ledger.ids() == ["id1", "id2"]
    assert ledger.runs(7, task="jobs.y") == [second]
    assert not ledger.overlaps()


def test_runs_of_one_key_at_once_take_slots_and_other_keys_do_not(ledger):
    with ledger.run("t", "a", "1"), ledger.run("t", "b", "2"):
        with ledger.run("t", "a", "3"):
            pass
        with ledger.run("t", "a", "4"):
            pass
    with ledger.run("t", "a", "5"):
        pass
    assert [run.task_id for run in ledger.overlaps()] == ["3", "4"]
    assert (ledger.peak("a"), ledger.peak("b"), ledger.peak("c")) == (2, 1, 0)


def test_a_killed_writer_leaves_a_run_without_an_end_and_no_slot(ledger):
    child = os.fork()
    if not child:
        with ledger.run("t", "a", "1"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with ledger.run("t", "a", "2"):
        pass
    assert [(run.task_id, run.slot, run.outcome) for run in ledger.runs("a")] == [
        ("1", 0, None),
        ("2", 0, "ok"),
    ]


def test_a_line_that_is_still_being_written_is_not_read(ledger, tmp_path):
    ledger.note("mark", "a", number=1)
    with (ledger.folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "mark", "ke')
    assert [note["number"] for note in ledger.notes("mark")] == [1]


def test_a_gate_stays_open(tmp_path):
    with pytest.raises(TimeoutError, match="gate 'a/b' was not opened"):
        Ledger(tmp_path / "x").wait_gate("a/b", timeout=0.02)
    Ledger(tmp_path / "x").open_gate("a/b")
    Ledger(tmp_path / "x").wait_gate("a/b", timeout=0)


@pytest.mark.parametrize(
    ("required", "outcome"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_a_missing_service_skips_or_fails(monkeypatch, required, outcome):
    monkeypatch.setenv("DEDUPE_REQUIRE_SERVICES", required)
    monkeypatch.setenv("DEDUPE_RABBITMQ_URL", "amqp://127.0.0.1:1//")
    with pytest.raises(outcome, match=r"rabbitmq does not answer at 127\.0\.0\.1:1 "):
        require_service("rabbitmq")
