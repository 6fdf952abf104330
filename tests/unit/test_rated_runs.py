"""Runs under a rate: who starts, who waits and for how long, what is given back, what a failure costs."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain
from celery.worker import state as worker_state

from celery_dedupe import Policy, RateExceeded, signals
from celery_dedupe.core.ticket import HEADER, from_headers
from celery_dedupe.core.verdicts import Poison, Raise, Skip, Wait
from celery_dedupe.guard.runs import Run
from celery_dedupe.signals import RanUnprotected, RunRefused
from tests.unit.bench import share
from tests.unit.conftest import NOTHING
from tests.unit.test_revocations import beat

MINUTE, SLACK = 60.0, 0.5  # seconds; the window of a minute is so much longer in the store
RATE = {"rate": "1/m", "key": []}


@pytest.fixture(autouse=True)
def no_revocations():
    yield
    worker_state.revoked.clear()


def fails() -> str:
    raise LookupError("no such customer")


class TestGuard:
    def test_one_starts_and_the_next_waits_for_its_own_slot(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m"))
        assert isinstance(b.begin("a"), Run)
        first, second = b.begin("b"), b.begin("c")
        assert isinstance(first, Wait)
        assert [wait.delay for wait in (first, second)] == pytest.approx([60.5, 121], abs=0.01)
        assert (first.ticket.waits, first.ticket.waited) == (0, 0.0), "it is neither a wait nor waited"
        assert (first.ticket.told, first.ticket.paced) == (first.delay, first.delay)
        assert first.ticket.promised.keys() == {"k0"}
        (event, _) = b.told(RunRefused)
        assert (event.decision, event.duplicate, event.reason) == (
            "wait",
            None,
            "its rate has a start free in 60.5 s",
        )

        b.clock.turn(first.delay)
        assert isinstance(b.begin("b", slots=first.ticket.slots), Run)
        assert b.store.held() == NOTHING

    def test_a_retry_is_another_start(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m"))
        wait = b.begin("b", slots=()) and b.begin("b")
        assert wait.ticket.as_new("n").slots == ()
        assert isinstance(b.begin("b", generation=1), Wait)

    def test_a_long_wait_is_told_in_steps_and_keeps_its_slot(self, bench: Any) -> None:
        b = bench(Policy(rate="1/h"))
        b.begin("a")
        wait, steps = b.begin("b"), 1
        slots = wait.ticket.slots
        while isinstance(wait, Wait):
            assert wait.delay <= 600
            assert wait.ticket.slots == slots
            b.clock.turn(wait.delay)
            wait = b.begin("b", slots=slots, paced=wait.ticket.paced)
            steps += 1
        assert isinstance(wait, Run)
        assert steps == 8

    def test_what_is_near_is_waited_for_in_place(self, bench: Any, monkeypatch: Any) -> None:
        slept: list[float] = []
        monkeypatch.setattr("celery_dedupe.guard.runs.time.sleep", slept.append)
        b = bench(Policy(rate="2/200ms"))
        for number in range(3):
            assert isinstance(b.begin(f"t{number}"), Run)
        assert slept == pytest.approx([0.21], abs=0.002)

    @pytest.mark.parametrize(("on_conflict", "kind"), [("skip", Skip), ("raise", Raise)])
    def test_what_may_not_wait_takes_no_slot(self, bench: Any, on_conflict: str, kind: type) -> None:
        b = bench(Policy(rate="1/m", on_conflict=on_conflict))
        b.begin("a")
        for number in range(3):
            refused = b.begin(f"b{number}")
            assert isinstance(refused, kind)
            assert refused.reason == "its rate has a start free in 60.5 s"
        if on_conflict == "raise":
            assert isinstance(refused.error, RateExceeded)
            assert (refused.error.task, refused.error.key) == ("t", "k0")
            assert refused.error.available_in == pytest.approx(60.5, abs=0.01)
        b.clock.turn(MINUTE + SLACK)
        assert isinstance(b.begin("b"), Run)

    def test_in_a_workflow_a_skip_is_a_wait(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m", on_conflict="skip"))
        b.begin("a")
        assert isinstance(b.begin("b", workflow=True), Wait)

    def test_a_lock_that_refuses_leaves_the_slot_to_others(self, bench: Any) -> None:
        b, other = (
            bench(Policy(rate="1/m"), Policy(lock="while_running")),
            bench(Policy(lock="while_running")),
        )
        share(b, other)
        b.begin("a")
        wait = b.begin("b")
        assert isinstance(wait, (Wait, Skip))
        assert isinstance(wait, Skip), "the lock is asked first: a duplicate takes no slot"
        assert [record.pace.tail for _, record in b.store.scan("k0")] == [0]

    def test_what_is_skipped_before_its_time_gives_its_slot_back(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m"), Policy(lock="while_running"))
        first = b.begin("a")
        assert isinstance(first, Run)
        other = bench(Policy(rate="1/m"))
        share(b, other)
        slots = other.begin("b").ticket.slots
        assert isinstance(b.begin("b", slots=(*slots, 0)), Skip)
        assert other.begin("c").ticket.slots == slots

    def test_the_wait_for_a_rate_keeps_the_claims_of_the_others(self, bench: Any) -> None:
        b = bench(Policy(lock="until_started", queue_ttl=5), Policy(rate="1/m"))
        b.begin("a")
        b.claim("b")
        assert isinstance(b.begin("b"), Wait)
        b.clock.turn(MINUTE)
        assert b.store.held() == {**NOTHING, "queued": ["b"]}

    def test_an_observer_tells_and_delays_nothing(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m", observe=True), Policy(rate="1/h"))
        assert isinstance(b.begin("a"), Run)
        wait = b.begin("b")
        assert isinstance(wait, Wait)
        assert wait.delay == 600
        observing = bench(Policy(rate="1/m"), observe=True)
        for number in range(3):
            assert isinstance(observing.begin(f"t{number}"), Run)
        assert [(event.decision, event.observed) for event in observing.told(RunRefused)] == [
            ("wait", True)
        ] * 2
        assert [record.pace.tail for _, record in observing.store.scan("*")] == [0]

    def test_an_observer_does_not_make_another_rate_promise_twice(self, bench: Any) -> None:
        b = bench(Policy(rate="1/h", observe=True), Policy(rate="1/m"))
        b.begin("a")
        slots = [b.begin(name).ticket.slots[1] for name in "bc"]
        assert slots[1] - slots[0] == pytest.approx(60.5e6, abs=10)

    @pytest.mark.parametrize("rate", [lambda: "soon", lambda customer: "1/m", fails])
    def test_a_function_that_fails_costs_the_rate_and_no_lock(self, bench: Any, rate: Any, log: Any) -> None:
        b = bench(Policy(rate=rate), Policy(lock="until_finished"))
        assert isinstance(b.begin("a"), Run)
        assert b.store.held() == {**NOTHING, "running": ["a"]}
        (event,) = b.told(RanUnprotected)
        assert (event.task_id, event.stage) == ("a", "start")
        assert event.reason.startswith(("ConfigurationError: the rule of 't': rate ", "LookupError: no such"))
        assert "t[a] runs without its rate" in log.text

    def test_without_the_store_a_rate_lets_go_on_or_waits_as_it_says(self, bench: Any) -> None:
        for on_store_error, kind in (("allow", Run), ("refuse", Wait)):
            b = bench(Policy(rate="1/m", on_store_error=on_store_error))
            b.store.down = True
            assert isinstance(b.begin("a"), kind)

    def test_a_poison_message_gives_its_slot_back(self, bench: Any) -> None:
        b = bench(Policy(rate="1/m"), Policy(lock="while_running", max_deliveries=1))
        b.begin("a")
        b.clock.turn(61)
        other = bench(Policy(rate="1/m"))
        share(b, other)
        other.begin("b")
        slots = other.begin("c").ticket.slots
        assert isinstance(b.begin("a", slots=(*slots, 0)), Poison)
        assert other.begin("d").ticket.slots == slots


class TestWorker:
    def test_a_run_over_its_rate_is_sent_again_as_it_was(self, local_app: Any) -> None:
        a = local_app({"t": RATE})
        t = a.task()
        t.delay(1)
        a.run_next()
        chain(t.si(2).set(headers={"mine": "kept"}), t.s()).apply_async()
        a.run_next()
        (message,) = a.messages()
        ticket = from_headers(message.headers)
        assert ticket.promised
        assert ticket.told == pytest.approx(60.5, abs=0.01)
        assert (message.headers["retries"], message.headers["mine"]) == (0, "kept")
        assert message.headers["eta"]
        a.clock.turn(ticket.told)
        a.start(message)
        assert a.ran == [1, 2]
        (tail,) = a.messages()
        assert not from_headers(tail.headers).slots

    def test_eager_it_raises(self, local_app: Any) -> None:
        a = local_app({"t": RATE}, eager=True, conf={"task_always_eager": True})
        t = a.task()
        assert t.delay(1).get() == 1
        with pytest.raises(RateExceeded, match=r"is over the rate of .* in 60\.5 s"):
            t.delay(2).get()
        assert a.ran == [1]

    def test_skipped_it_ends_revoked(self, local_app: Any) -> None:
        a = local_app({"t": {**RATE, "on_conflict": "skip"}})
        t = a.task()
        t.delay(1)
        a.run_next()
        result = t.delay(2)
        a.run_next()
        assert (result.state, str(result.result)) == ("REVOKED", "its rate has a start free in 60.5 s")

    def test_raised_it_fails_with_the_time_left(self, local_app: Any) -> None:
        a = local_app({"t": {**RATE, "on_conflict": "raise"}})
        t = a.task()
        t.delay(1)
        a.run_next()
        result = t.delay(2)
        a.run_next()
        with pytest.raises(RateExceeded):
            result.get(timeout=5)

    @pytest.mark.parametrize("how", ["revoked", "expired"])
    def test_a_waiter_that_will_not_come_gives_its_slot_back(self, local_app: Any, how: str) -> None:
        a = local_app({"t": RATE})
        t = a.task()
        t.delay(1)
        a.run_next()
        t.apply_async((2,), task_id="id", **({"expires": 1000} if how == "expired" else {}))
        a.run_next()
        (message,) = a.messages()
        request = a.receive(message)
        slots = from_headers(message.headers).slots
        beat(a.app)
        if how == "revoked":
            worker_state.revoked.add("id")
        else:
            request.expires = request.expires.replace(year=2000)

        beat(a.app)

        t.delay(3)
        a.run_next()
        (other,) = a.messages()
        assert from_headers(other.headers).slots == slots

    def test_its_eta_by_another_clock_is_not_believed(self, local_app: Any) -> None:
        a = local_app({"t": RATE})
        t = a.task()
        t.delay(1)
        a.run_next()
        t.delay(2)
        a.run_next()
        (message,) = a.messages()
        message.headers["eta"] = "2100-01-01T00:00:00+00:00"
        request = a.receive(message)
        assert request.eta.year < 2100

    def test_a_worker_with_other_rules_gives_the_slot_back(self, local_app: Any) -> None:
        a = local_app({"t": RATE})
        t = a.task()
        t.delay(1)
        a.run_next()
        t.delay(2)
        a.run_next()
        (message,) = a.messages()
        slots = from_headers(message.headers).slots
        with a.dedupe.reconfigured(client=a.store, rules={"t": [RATE, {"lock": "until_started"}]}):
            message.headers[HEADER]["k"].append("dedupe:another")
            message.headers[HEADER]["r"].append(0)
            message.headers[HEADER]["k"].append("dedupe:a third")
            message.headers[HEADER]["r"].append(0)
            a.start(message)
            (again,) = a.messages()
        assert from_headers(again.headers).slots == (*slots, 0)
        assert a.told(signals.RanUnprotected) == []
