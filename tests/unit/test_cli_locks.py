"""``dedupe locks``."""

from __future__ import annotations

import json

import pytest

from celery_dedupe.cli import locks as module
from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk, FinishAsk
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.memory import MemoryStore

NOW = 1_700_000_000_000
DIGEST = "0123456789abcdef" * 2


def key(scope, number=0):
    return f"dedupe:{scope}:{number:032x}"


def claim(a, key, task_id, ttl=3_600_000):
    assert a.store.claim([ClaimAsk(key, ttl, frozenset())], Caller(task_id)) is None


def begin(a, key, task_id, **fields):
    ask = BeginAsk(key, slot=True, limit=9, lease=60_000, **fields)
    (fence,) = a.store.begin([ask], Attempt(task_id, f"token of {task_id}", node="celery@web1")).fences
    return fence


@pytest.fixture
def a(local_app):
    a = local_app({"t": "until_finished", "pay": {"lock": "once", "scope": "payments"}, "other": "once"})
    for name in ("t", "pay", "other"):
        a.task(name=name)
    return a


@pytest.fixture
def held(a):
    """One of each state, in the order of their ages."""
    a.store.finish([FinishAsk(key("payments"), "", "done", 0)], Attempt("the-done", ""), well=True)
    a.clock.turn(60)
    a.fence = begin(a, key("t"), "the-running")
    a.clock.turn(30)
    claim(a, key("t"), "the-queued")
    a.clock.turn(15)
    return a


def table(output):
    return [line.split("  ") and line.split() for line in output.split("\n\n")[0].splitlines()]


def test_everything_oldest_first(dedupe_command, held):
    result = dedupe_command(held.app, "locks")
    assert result.exit_code == 0
    assert table(result.output) == [
        ["STATE", "AGE", "EXPIRES", "IN", "TASK", "TASK", "ID", "NODE", "FENCE", "KEY"],
        ["done", "1m", "45s", "never", "payments", "the-done", "-", "-", key("payments")],
        ["running", "45s", "15s", "t", "the-running", "celery@web1", str(held.fence), key("t")],
        ["queued", "15s", "59m", "45s", "t", "the-queued", "-", "-", key("t")],
    ]
    assert result.output.endswith("\n\n1 queued, 1 running, 1 done\n")


def test_columns_are_aligned(dedupe_command, held):
    lines = dedupe_command(held.app, "locks").output.split("\n\n")[0].splitlines()
    for head in ("AGE", "EXPIRES IN", "TASK ID", "NODE", "FENCE", "KEY"):
        at = lines[0].index(head)
        assert {line[at - 2 : at] for line in lines} == {"  "}
        assert all(line[at] != " " for line in lines)


def test_a_program_gets_one_list(dedupe_command, held):
    done, running, queued = json.loads(dedupe_command(held.app, "locks", "--json").output)
    assert (done["state"], done["expires_in"], done["fence"], done["node"]) == ("done", None, None, None)
    assert running["since"] == "2023-11-14T22:14:20.000+00:00"
    assert running["age"] == pytest.approx(45, abs=0.1)
    assert running["expires_in"] == pytest.approx(15, abs=0.1)
    assert (running["fence"], running["node"]) == (held.fence, "celery@web1")
    assert {name: queued[name] for name in ("key", "scope", "state", "task_id")} == {
        "key": key("t"),
        "scope": "t",
        "state": "queued",
        "task_id": "the-queued",
    }


def test_nothing_is_held(dedupe_command, a):
    assert dedupe_command(a.app, "locks").output == "nothing\n"
    assert json.loads(dedupe_command(a.app, "locks", "--json").output) == []


@pytest.mark.parametrize("state", ["queued", "running", "done"])
def test_one_state(dedupe_command, held, state):
    rows = json.loads(dedupe_command(held.app, "locks", "--state", state, "--json").output)
    assert [row["task_id"] for row in rows] == [f"the-{state}"]


def test_a_run_whose_process_died(dedupe_command, a):
    begin(a, key("payments"), "dead", remembers=True, trace=86_400_000)
    a.clock.turn(61)
    (row,) = json.loads(dedupe_command(a.app, "locks", "--state", "lapsed", "--json").output)
    assert (row["state"], row["task_id"]) == ("lapsed", "dead")


def test_there_is_no_other_state(dedupe_command, a):
    result = dedupe_command(a.app, "locks", "--state", "ended")
    assert result.exit_code == 2
    assert "lapsed" in result.output


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("t", ["the-running", "the-queued"]),
        ("*", ["the-done", "the-running", "the-queued"]),
        ("pay", ["the-done"]),  # its scope is another word
        ("p*", ["the-done"]),
        ("payments", ["the-done"]),  # the scope itself
        ("?", ["the-running", "the-queued"]),
        ("[st]", ["the-running", "the-queued"]),
        ("other", []),
    ],
)
def test_tasks_by_glob(dedupe_command, held, glob, found):
    rows = json.loads(dedupe_command(held.app, "locks", "--task", glob, "--json").output)
    assert [row["task_id"] for row in rows] == found


def test_tasks_that_this_program_does_not_have(dedupe_command, a):
    claim(a, key("gone.task"), "q1")
    (row,) = json.loads(dedupe_command(a.app, "locks", "--task", "gone.*", "--json").output)
    assert (row["scope"], row["task_id"]) == ("gone.task", "q1")


def test_a_scope_with_odd_letters_is_read_as_it_is_written(dedupe_command, local_app):
    a = local_app({"t": {"lock": "once", "scope": "a:b *~é"}})
    a.task().delay(1)
    for words in ((), ("--task", "t"), ("--task", "a:b *")):
        (row,) = json.loads(dedupe_command(a.app, "locks", *words, "--json").output)
        assert row["scope"] == "a:b *~é"


def test_what_belongs_to_others_is_not_shown(dedupe_command, a):
    """Another app whose prefix begins as ours does, and a key of our prefix that is none of ours."""
    for other in (f"dedupe:other:t:{DIGEST}", "dedupe:t", f"dedupes:t:{DIGEST}"):
        claim(a, other, "q1")
    assert dedupe_command(a.app, "locks").output == "nothing\n"


def test_in_mode_off_there_is_no_store(dedupe_command, local_app):
    result = dedupe_command(local_app({"t": "once"}, mode="off").app, "locks")
    assert result.exit_code == 2
    assert "dedupe_mode is 'off', so there is no claim store to look at" in result.output


class Screen:
    """Ends a live view after so many looks, as Ctrl-C does."""

    def __init__(self, monkeypatch, looks):
        self.slept = []
        monkeypatch.setattr(module.time, "sleep", self.sleep)
        self.looks = looks
        self.between = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        if len(self.slept) == self.looks:
            raise KeyboardInterrupt
        for change in self.between:
            change()


class TestWatch:
    def test_it_looks_again_and_again(self, dedupe_command, a, monkeypatch):
        screen = Screen(monkeypatch, 2)
        screen.between.append(lambda: claim(a, key("t"), "q1"))
        result = dedupe_command(a.app, "locks", "--watch")
        assert result.exit_code == 0, "Ctrl-C is how it ends"
        first, second = result.output.split("Ctrl-C ends\n")[:2]
        assert "nothing, at " in first
        assert "q1" in second
        assert "1 queued, at " in second
        assert all(seconds >= 2 for seconds in screen.slept)

    def test_it_rests_for_longer_than_it_looks(self, dedupe_command, a, monkeypatch):
        screen = Screen(monkeypatch, 1)
        ticks = iter((100.0, 130.0))
        monkeypatch.setattr(module.time, "monotonic", lambda: next(ticks))
        dedupe_command(a.app, "locks", "--watch")
        assert screen.slept == [120.0]

    def test_it_shows_what_the_screen_holds(self, dedupe_command, a, monkeypatch):
        monkeypatch.setenv("LINES", "10")
        Screen(monkeypatch, 1)
        for number in range(20):
            claim(a, key("t", number), f"q{number}.")
            a.clock.turn(1)
        output = dedupe_command(a.app, "locks", "--watch").output
        shown = [number for number in range(20) if f" q{number}. " in output]
        assert shown == list(range(6))
        assert "20 queued, of which the oldest 6, at " in output

    def test_it_survives_an_outage(self, dedupe_command, a, monkeypatch):
        def away():
            monkeypatch.undo()
            monkeypatch.setattr(module.time, "sleep", screen.sleep)
            raise StoreUnavailable("the store is away")

        claim(a, key("t"), "q1")
        screen = Screen(monkeypatch, 2)
        monkeypatch.setattr(a.store, "clock", away)
        result = dedupe_command(a.app, "locks", "--watch")
        assert result.exit_code == 0
        assert "the store is away\n" in result.output
        assert "q1" in result.output

    def test_it_is_for_people(self, dedupe_command, a):
        result = dedupe_command(a.app, "locks", "--watch", "--json")
        assert result.exit_code == 2
        assert "leave one out" in result.output


def test_a_lock_in_a_named_store_is_told_with_its_name_and_freed_by_it(dedupe_command, local_app):
    ledger = MemoryStore()
    a = local_app({"pay": {"lock": "once", "store": "ledger"}}, stores={"ledger": ledger})
    a.task(name="pay")
    claim(a, key("t"), "here")
    assert ledger.claim([ClaimAsk(key("pay"), 3_600_000, frozenset())], Caller("there")) is None
    assert ledger.claim([ClaimAsk(key("t"), 3_600_000, frozenset())], Caller("there too")) is None

    document = json.loads(dedupe_command(a.app, "locks", "--json").output)
    held = {(one["key"], one["task_id"]) for one in document}
    assert held == {
        (key("t"), "here"),
        (f"ledger/{key('pay')}", "there"),
        (f"ledger/{key('t')}", "there too"),
    }
    assert dedupe_command(a.app, "release", f"ledger/{key('t')}").exit_code == 0
    assert not ledger.read(key("t"))
    assert a.store.read(key("t")).queued
    wrong = dedupe_command(a.app, "release", f"leger/{key('t')}")
    assert wrong.exit_code == 2
    assert "is no key of this app" in wrong.output
