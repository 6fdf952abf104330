"""What is foretold of a call is what happens to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_dedupe import Policy, duplicate_of
from celery_dedupe.core import forecast
from celery_dedupe.core.call import Call
from celery_dedupe.core.forecast import Scene
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.parts import FOREVER, Done, Pace, Queued, Running, Trace
from celery_dedupe.core.record import Record
from celery_dedupe.signals import RunRefused

NOW = 1_700_000_000_000_000
MS = NOW // 1000
QUEUED = Record(queued=(Queued("q1", MS + 90_000, 0, MS),))
RUNNING = Record(running=(Running("tok", "r1", "n", NOW, 0, "w1@host", MS, MS + 45_000),))
DONE = Record(done=Done("d1", MS + 7_200_000, MS))


def rule(lock: str, **fields: Any) -> dict[str, Any]:
    period = {"period": "10m"} if lock == "until_expired" else {}
    return {"lock": lock, **period, **fields}


def scene(*records: Record, states: Any = None, **fields: Any) -> Scene:
    policies = [Policy(**rule(**fields)) for _ in records]
    keys = [f"k{place}" for place in range(len(records))]
    call = Call("t", "new", (), {}, None)
    return Scene(call, policies, keys, dict(zip(keys, records, strict=True)), states or {}, NOW)


FULL = Record(pace=Pace((NOW - 20_500_000,), 60_500_001, 0, 0, (), MS + 40_001))


class TestRates:
    @pytest.mark.parametrize(
        ("on_conflict", "what"),
        [
            ("wait", "would wait for a slot of its own"),
            ("skip", "would be skipped, and end REVOKED"),
            ("raise", "would end FAILURE with RateExceeded"),
        ],
    )
    def test_a_start_that_is_not_free(self, on_conflict: str, what: str) -> None:
        policy = Policy(rate=lambda task: "1/m", on_conflict=on_conflict)
        full = Scene(Call("t", "new", (), {}, None), [policy], ["k"], {"k": FULL}, {}, NOW)
        found = forecast.start(full)
        assert (found.goes, found.by) == (False, "k")
        assert found.sentence == f"{what}: its rate has a start free in 40.0 s"
        assert forecast.publish(full).sentence == "would be sent: no lock of its rule refuses a publish"

    def test_a_start_that_is(self) -> None:
        free = Scene(Call("t", "new", (), {}, None), [Policy(rate="1/m")], ["k"], {}, {}, NOW)
        assert forecast.start(free) == forecast.Forecast(True, "would run")

    def test_an_observer(self) -> None:
        policies = [Policy(rate="1/m", observe=True), Policy(lock="while_running")]
        full = Scene(Call("t", "new", (), {}, None), policies, ["k", "l"], {"k": FULL}, {}, NOW)
        found = forecast.start(full)
        assert found.goes
        assert found.sentence.endswith(
            "enforced, it would wait for a slot of its own: its rate has a start free in 40.0 s"
        )


class TestSentences:
    @pytest.mark.parametrize(
        ("lock", "sentence"),
        [
            ("until_started", "would be sent; an equal call would be its duplicate until it starts"),
            ("while_running", "would be sent: no lock of its rule refuses a publish"),
            ("queue_and_run", "would be sent; an equal call would be its duplicate until it starts"),
            ("until_finished", "would be sent; an equal call would be its duplicate to its end"),
            ("until_expired", "would be sent; an equal call would be its duplicate for 10m"),
            (
                "once",
                "would be sent; an equal call would be its duplicate to its end, and for 7d after a success",
            ),
        ],
    )
    def test_a_publish_that_goes_out(self, lock: str, sentence: str) -> None:
        assert forecast.publish(scene(Record(), lock=lock)) == forecast.Forecast(True, sentence)

    @pytest.mark.parametrize(
        ("on_duplicate", "gets"), [("existing", "q1's result"), ("none", "None"), ("raise", "DuplicateTask")]
    )
    def test_a_publish_that_is_dropped(self, on_duplicate: str, gets: str) -> None:
        found = forecast.publish(scene(QUEUED, lock="until_started", on_duplicate=on_duplicate))
        assert found.sentence == (
            f"would be dropped as a duplicate of q1, which is queued for 1m 30s; its caller would get {gets}"
        )
        assert not found.goes

    def test_who_is_in_the_way_and_for_how_long(self) -> None:
        for record, words in (
            (RUNNING, "r1, which is running for 45s unless it renews its lease;"),
            (DONE, "d1, which is done for 2h;"),
            (Record(done=Done("d1", FOREVER, MS)), "d1, which is done for ever;"),
        ):
            assert words in forecast.publish(scene(record, lock="once")).sentence

    def test_a_lock_that_only_observes(self) -> None:
        observed = scene(QUEUED, lock="until_started", observe=True)
        assert forecast.publish(observed) == forecast.Forecast(
            True,
            "would be sent all the same, for the lock only observes; enforced, it would be dropped as a "
            "duplicate of q1, which is queued for 1m 30s; its caller would get q1's result",
        )
        observed = scene(RUNNING, lock="while_running", observe=True)
        assert forecast.start(observed).sentence.startswith(
            "would run all the same, for the lock only observes; enforced, it would be skipped"
        )

    def test_beside_one_that_does_not(self) -> None:
        both = scene(QUEUED, QUEUED, lock="until_started")
        both = replace(both, policies=[replace(both.policies[0], observe=True), both.policies[1]])
        assert (forecast.publish(both).goes, forecast.publish(both).by) == (False, "k1")
        first = replace(both, book={"k0": QUEUED, "k1": Record()})
        assert forecast.publish(first).goes

    def test_a_start_that_runs(self) -> None:
        lease = "would run, and hold its lock to its end by a lease of 1m"
        assert forecast.start(scene(Record(), lock="until_finished")).sentence == lease
        assert forecast.start(scene(QUEUED, lock="until_finished")).sentence == lease
        none = "would run: no lock of its rule keeps runs apart"
        assert forecast.start(scene(QUEUED, lock="until_started")).sentence == none

    @pytest.mark.parametrize(
        ("on_conflict", "words"),
        [
            ("wait", "would wait, for 1h in all at most: in its way is r1, which is running for 45s"),
            ("skip", "would be skipped, and end REVOKED, as a duplicate of r1, which is running for 45s"),
            ("raise", "would end FAILURE with DuplicateTask: in its way is r1, which is running for 45s"),
        ],
    )
    def test_a_start_that_does_not(self, on_conflict: str, words: str) -> None:
        found = forecast.start(scene(RUNNING, lock="until_finished", on_conflict=on_conflict))
        assert found.sentence.startswith(words)
        assert not found.goes

    def test_no_rule(self) -> None:
        nothing = Scene(Call("t", "new", (), {}, None), (), (), {}, {}, NOW)
        assert forecast.publish(nothing) == forecast.Forecast(
            True, "would be sent: no rule refuses a publish"
        )
        assert forecast.start(nothing) == forecast.Forecast(True, "would run: no rule keeps runs apart")

    def test_several_in_the_way(self) -> None:
        (run,) = RUNNING.running
        runs = tuple(Running(f"tok{n}", f"r{n}", "n", NOW + n, 0, "w", MS, run.expires_at) for n in range(3))
        found = forecast.start(scene(Record(running=runs), lock="while_running", limit=3))
        assert "a duplicate of r0 (and 2 more), which is running" in found.sentence

    def test_of_several_locks_the_one_that_refuses_is_named(self) -> None:
        assert "r1" in forecast.publish(scene(Record(), RUNNING, lock="until_finished")).sentence
        found = forecast.publish(scene(Record(), Record(), lock="until_finished"))
        assert found.sentence.endswith("its duplicate to its end"), "the same is said once"


class TestRunsWhoseResultIsKnown:
    """The result backend knows more than the record, for a moment or since a process was killed."""

    TRACE = Record(traces=(Trace("r1", "tok", MS, MS + 60_000),))

    @pytest.mark.parametrize("ask", [forecast.publish, forecast.start])
    def test_one_that_has_ended_is_in_nobodys_way(self, ask: Callable[[Scene], Any]) -> None:
        for lock in ("until_finished", "once"):
            assert not ask(scene(RUNNING, lock=lock)).goes
            assert not ask(scene(RUNNING, lock=lock, states={"other": "SUCCESS"})).goes
            assert ask(scene(RUNNING, lock=lock, states={"tok": "FAILURE"})).goes

    @pytest.mark.parametrize("ask", [forecast.publish, forecast.start])
    def test_work_that_was_done_is_done(self, ask: Callable[[Scene], Any]) -> None:
        assert ask(scene(RUNNING, lock="until_finished", states={"tok": "SUCCESS"})).goes
        assert not ask(scene(RUNNING, lock="once", states={"tok": "SUCCESS"})).goes
        assert (
            "r1, which is done for 7d"
            in ask(scene(self.TRACE, lock="once", states={"tok": "SUCCESS"})).sentence
        )

    @pytest.mark.parametrize("ask", [forecast.publish, forecast.start])
    def test_a_dead_run_without_a_result_is_in_nobodys_way(self, ask: Callable[[Scene], Any]) -> None:
        assert ask(scene(self.TRACE, lock="once")).goes


def test_what_it_is_asked_about_is_left_as_it_was() -> None:
    before = scene(RUNNING, lock="once", states={"tok": "FAILURE"})
    forecast.publish(before)
    forecast.start(before)
    assert before.book == {"k0": RUNNING}


SITUATIONS: dict[str, Callable[[Any, Any], None]] = {
    "nothing": lambda a, t: None,
    "queued": lambda a, t: t.delay(1),
    "running": lambda a, t: _hold(a, t),
    "queued and running": lambda a, t: (_hold(a, t), t.delay(1)),
    "done": lambda a, t: (t.delay(1), a.run_next()),
    "expired": lambda a, t: (t.delay(1), a.clock.turn(100_000)),
}


def _hold(a: Any, t: Any) -> None:
    """A run that does not end while the test looks."""
    from celery_dedupe.core.asks import Attempt, BeginAsk

    (key,) = a.dedupe.keys(Call("t", "held", (1,), {}, a.dedupe.signature("t")), a.dedupe.policies("t"))
    if a.dedupe.policies("t")[0].traits.runs:
        a.store.begin([BeginAsk(key, slot=True, lease=60_000)], Attempt("held", "tok"))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("lock", LOCKS)
def test_it_comes_true(local_app: Callable[..., Any], lock: str, situation: str) -> None:
    a = local_app({"t": rule(lock)})
    t = a.task()
    SITUATIONS[situation](a, t)
    a.messages()

    def look() -> Scene:
        policies = a.dedupe.policies("t")
        call = Call("t", uuid.uuid4().hex, (1,), {}, a.dedupe.signature("t"))
        keys = a.dedupe.keys(call, policies)
        return Scene(call, policies, keys, {key: a.store.read(key) for key in keys}, {}, a.clock())

    foretold = forecast.publish(look())
    result = t.delay(1)
    assert foretold.goes == (duplicate_of(result) is None)
    if not foretold.goes:
        assert duplicate_of(result).task_id in foretold.sentence

    a.messages()
    foretold = forecast.start(look())
    t.apply_async((1,), dedupe=False)
    (message,) = a.messages()
    message.headers.pop("dedupe", None)  # as one that has no claim of its own
    a.events.clear()
    a.start(message)
    refused = a.told(RunRefused)
    assert foretold.goes == (not refused)
    if refused:
        decision = {"wait": "would wait", "skip": "would be skipped"}[refused[0].decision]
        assert foretold.sentence.startswith(decision)
        assert refused[0].duplicate.task_id in foretold.sentence
