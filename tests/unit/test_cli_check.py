"""``dedupe check``, with workers that are played: what they answer, what waits in queues."""

from __future__ import annotations

import json
import time

import pytest

from celery_dedupe.core.asks import Attempt, Caller, ClaimAsk, FinishAsk
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.inspection import ABSENT, UNKNOWN, answer
from celery_dedupe.store.memory import MemoryStore

SOUND = StoreFacts("valkey 9.1", evicts="", persists=True, writable=True)


class Workers:
    """Answers remote control in the place of workers."""

    def __init__(self, a, monkeypatch):
        self.a = a
        self.replies = {}
        self.registered = {}
        self.asked = []
        monkeypatch.setattr(a.app.control, "broadcast", self.broadcast)

    def add(self, node, **changed):
        reply = answer(self.a.dedupe, node, [self.a.app.main], ())
        self.replies[node] = {**reply, **changed}

    def broadcast(self, command, *, timeout, connection, callback=None, destination=None, limit=None, reply):
        self.asked.append((command, timeout, limit))
        assert reply
        if command == "registered":
            return [{node: self.registered[node]} for node in destination if node in self.registered]
        for node, said in self.replies.items():
            callback({node: {**said, "clock": said["clock"] + time.time()} if "clock" in said else said})
        return None


@pytest.fixture
def a(local_app, monkeypatch):
    a = local_app({"t": "until_finished"})
    a.task()
    a.store._clock = lambda: time.time_ns() // 1000
    monkeypatch.setattr(a.store, "facts", lambda: SOUND)
    a.workers = Workers(a, monkeypatch)
    a.workers.add("w1@unit", clock=0)
    return a


@pytest.fixture
def found(dedupe_command, a):
    """``found()``: the findings, pairs of kind and text; the exit code must fit them."""

    def check(*words):
        result = dedupe_command(a.app, "check", "--json", *words)
        document = json.loads(result.stdout)
        findings = [(finding["kind"], finding["text"]) for finding in document["findings"]]
        errors = any(kind == "error" for kind, _ in findings)
        assert (result.exit_code, document["ok"]) == (int(errors), not errors)
        return findings

    return check


class TestOutput:
    def test_all_in_place(self, dedupe_command, a):
        result = dedupe_command(a.app, "check")
        assert result.exit_code == 0
        digest = a.workers.replies["w1@unit"]["digest"]
        assert result.output.splitlines() == [
            "mode     enforce",
            f"rules    {digest}",
            "claims   valkey 9.1 at a client of the app's own",
            f"worker   w1@unit: rules {digest}, 0 leases, version 0.1.0",
            "",
            "all in place",
        ]

    def test_findings_worst_first(self, dedupe_command, local_app, a):
        a.workers.add("w2@unit", clock=3600, digest="another")
        a.workers.replies["w3@unit"] = {"error": UNKNOWN}
        a.workers.registered["w3@unit"] = ["t"]
        result = dedupe_command(a.app, "check")
        assert result.exit_code == 1
        kinds = [line.split()[0] for line in result.output.split("\n\n")[1].splitlines()]
        assert kinds == ["error", "error", "warning"]
        assert result.output.endswith("\n\n2 errors, 1 warning\n")

    def test_a_program_gets_the_workers_too(self, dedupe_command, a):
        document = json.loads(dedupe_command(a.app, "check", "--json").stdout)
        (worker,) = document.pop("workers")
        assert (worker["node"], worker["leases"], worker["breaker"]) == ("w1@unit", [], "closed")
        assert document == {
            "ok": True,
            "mode": "enforce",
            "claims": "valkey 9.1 at a client of the app's own",
            "rules": worker["digest"],
            "findings": [],
        }


class TestHere:
    def test_what_a_worker_says_of_itself_it_says_too(self, a, found, monkeypatch):
        facts = StoreFacts("valkey 9.1", evicts="allkeys-lru", persists=True, writable=True)
        monkeypatch.setattr(a.store, "facts", lambda: facts)
        a.app.send_task = lambda *args, **named: None
        (first, second) = found()
        assert first[0] == second[0] == "error"
        assert "app.send_task is no longer attached" in first[1] + second[1]
        assert "maxmemory-policy allkeys-lru" in first[1] + second[1]
        a.app.send_task = a.dedupe._publish_gate.send_task

    def test_results_of_rpc_with_the_tasks_that_have_them(self, dedupe_command, local_app, monkeypatch):
        a = local_app({"t": "once"}, conf={"result_backend": "rpc://"})
        a.task()
        output = dedupe_command(a.app, "check").output
        assert "the caller of a duplicate of t one that never comes" in output

    def test_rules_that_count_for_no_task(self, dedupe_command, local_app, monkeypatch):
        a = local_app({"t": "once", "t*": "once", "u.*": "once"})
        a.task()
        output = dedupe_command(a.app, "check").output
        assert "warning  rule 't*' counts for no task: shadowed by t\n" in output
        assert "warning  rule 'u.*' counts for no task: matches no task\n" in output

    def test_a_rule_that_does_not_fit_is_a_wrong_setting(self, dedupe_command, local_app):
        a = local_app({"t": {"lock": "once", "key": ["nothing"]}})
        a.task()
        assert dedupe_command(a.app, "check").exit_code == 2


class TestStore:
    def test_it_does_not_answer(self, a, found, monkeypatch):
        def away():
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(a.store, "clock", away)
        monkeypatch.setattr(a.store, "facts", away)
        ((kind, text),) = found()
        assert (kind, text.partition(";")[0]) == ("error", "the store is away")

    @pytest.mark.parametrize(("ahead", "way"), [(60, "ahead of"), (-60, "behind")])
    def test_its_clock_is_another(self, a, found, ahead, way):
        a.store._clock = lambda: time.time_ns() // 1000 + ahead * 1_000_000
        ((kind, text),) = found()
        assert kind == "warning"
        assert text.startswith("the claim store's clock is ")
        assert f" {way} this machine's" in text

    def test_in_mode_off_it_is_not_looked_at(self, dedupe_command, local_app, monkeypatch):
        a = local_app({"t": "once"}, mode="off")
        a.task()
        workers = Workers(a, monkeypatch)
        workers.add("w1@unit", clock=0)
        result = dedupe_command(a.app, "check")
        assert result.exit_code == 0
        assert "claims   not looked at in mode off\n" in result.output
        assert result.output.endswith("all in place\n")


class TestWorkers:
    def test_none_answers(self, a, found):
        a.workers.replies.clear()
        assert found() == [
            (
                "warning",
                "no worker with these tasks has answered within 1 s: nobody gives claims back",
            )
        ]

    def test_they_are_waited_for_as_long_as_is_asked(self, a, found):
        found("--timeout", "2.5")
        assert a.workers.asked == [("dedupe", 2.5, None), ("dedupe", 2.5, 1)]

    @pytest.mark.parametrize("error", [UNKNOWN, ABSENT])
    def test_one_without_the_extension(self, a, found, error):
        a.workers.replies["w2@unit"] = {"error": error}
        a.workers.registered["w2@unit"] = ["other", "t [rate_limit=1/s]"]
        ((kind, text),) = found()
        assert kind == "error"
        assert text.startswith("w2@unit does not have celery-dedupe")

    def test_one_of_another_app(self, a, found):
        """It shares the broker, and none of the tasks."""
        a.workers.replies["w2@unit"] = {"error": UNKNOWN}
        a.workers.registered["w2@unit"] = ["other"]
        a.workers.add("w3@unit", clock=0, tasks=["other"], digest="another")
        assert found() == []

    def test_one_with_other_rules(self, a, found):
        a.workers.add("w2@unit", clock=0, digest="another")
        ((kind, text),) = found()
        assert kind == "error"
        assert text.startswith("workers differ in their rules: ")
        assert "another at w2@unit" in text

    def test_one_that_fails(self, a, found):
        a.workers.replies["w2@unit"] = {"error": "ZeroDivisionError('division by zero')"}
        assert found() == [
            ("error", "w2@unit cannot say what it holds: ZeroDivisionError('division by zero')")
        ]

    def test_one_whose_clock_is_wrong(self, a, found):
        a.workers.add("w2@unit", clock=-90)
        ((kind, text),) = found()
        assert kind == "warning"
        assert text.startswith("the clock of w2@unit is 1m ")

    def test_one_of_another_version(self, a, found):
        reply = a.workers.replies["w1@unit"]
        del reply["queues"], reply["messages"], reply["clock"]
        reply["something_new"] = 1
        assert found() == []

    def test_no_broker(self, dedupe_command, local_app):
        a = local_app({"t": "once"}, conf={"broker_url": "redis://127.0.0.1:1/0"})
        a.task()
        result = dedupe_command(a.app, "check")
        assert result.exit_code == 0
        (note,) = [line for line in result.output.splitlines() if line.startswith("note ")]
        assert note.startswith("note     no worker was asked, for no broker answers (OperationalError: ")
        assert "worker   " not in result.output


def claim(a, number, scope="t", task_id=None):
    key = f"dedupe:{scope}:{number:032x}"
    assert a.store.claim([ClaimAsk(key, 3_600_000, frozenset())], Caller(task_id or f"q{number}")) is None


def let_time_pass(a):
    before = a.store.clock()
    while a.store.clock() <= before:
        pass


class TestClaimsWithoutAMessage:
    def test_their_queue_was_purged(self, a, found):
        """Case 7."""
        for value in range(5):
            a.app.tasks["t"].delay(value)
        let_time_pass(a)
        assert found() == []
        a.messages()
        ((kind, text),) = found()
        assert kind == "warning"
        assert text.startswith("at least 5 queued claims have no message")
        assert "They are of t." in text

    def test_some_are_left(self, a, found):
        for value in range(3):
            a.app.tasks["t"].delay(value)
        a.messages()
        a.app.tasks["t"].delay("another")
        let_time_pass(a)
        ((_, text),) = found()
        assert text.startswith("at least 3 queued claims")

    def test_those_that_workers_have_fetched_count(self, a, found):
        for value in range(3):
            a.app.tasks["t"].delay(value)
        a.messages()
        let_time_pass(a)
        a.workers.add("w2@unit", clock=0, messages=2)
        ((_, text),) = found()
        assert text.startswith("at least 1 queued claims")
        a.workers.add("w3@unit", clock=0, messages=1)
        assert found() == []

    def test_several_claims_of_one_task_have_one_message(self, a, found):
        for number in range(3):
            claim(a, number, task_id="the same")
        let_time_pass(a)
        ((_, text),) = found()
        assert text.startswith("at least 1 queued claims")

    def test_what_is_claimed_while_they_are_counted_is_not_missing(self, a, found, monkeypatch):
        ask = a.workers.broadcast

        def broadcast(*args, **named):
            if a.workers.asked:  # the first time they are asked who they are
                claim(a, len(a.workers.asked))
            return ask(*args, **named)

        monkeypatch.setattr(a.app.control, "broadcast", broadcast)
        let_time_pass(a)
        assert found() == []

    def test_what_is_missing_for_a_moment_is_not_missing(self, a, found, monkeypatch):
        """A message on its way from a queue to a worker."""
        claim(a, 1)
        let_time_pass(a)
        looks = []

        def scan(pattern):
            looks.append(pattern)
            if len(looks) == 1:
                a.workers.add("w2@unit", clock=0, messages=1)
            return MemoryStore.scan(a.store, pattern)

        monkeypatch.setattr(a.store, "scan", scan)
        assert found() == []
        assert len(looks) == 2

    def test_a_period_outlives_its_message(self, dedupe_command, local_app, monkeypatch):
        a = local_app({"t": {"lock": "until_expired", "period": "1h"}})
        a.task().delay(1)
        a.messages()
        a.clock.turn(1)
        Workers(a, monkeypatch).add("w1@unit", clock=0)
        assert "no message" not in dedupe_command(a.app, "check").output

    @pytest.mark.parametrize("reply", [{"error": UNKNOWN}, {"error": "ValueError()"}])
    def test_nothing_is_said_where_a_worker_does_not_say_what_it_has(self, a, found, reply):
        claim(a, 1)
        let_time_pass(a)
        a.workers.replies["w2@unit"] = reply
        a.workers.registered["w2@unit"] = ["t"]
        assert not any("no message" in text for _, text in found())

    def test_nor_where_no_worker_answers(self, a, found):
        claim(a, 1)
        let_time_pass(a)
        a.workers.replies.clear()
        assert not any("no message" in text for _, text in found())

    def test_nor_of_scopes_that_are_of_another_app(self, a, found):
        claim(a, 1, scope="others")
        let_time_pass(a)
        assert found() == []

    def test_more_than_can_be_told_apart(self, a, found, monkeypatch):
        monkeypatch.setattr("celery_dedupe.cli.leftovers.MOST", 10)
        for number in range(25):
            claim(a, number)
        let_time_pass(a)
        ((_, text),) = found()
        assert text.startswith("at least 10 queued claims")


class TestMarksForEver:
    def done(self, a, scope, ttl=0):
        key = f"dedupe:{scope}:{len(a.store.held()['done']):032x}"
        a.store.finish([FinishAsk(key, "", "done", ttl)], Attempt("d", ""), well=True)

    def test_no_rule_says_so_any_more(self, a, found):
        for scope in ("gone", "gone", "t"):
            self.done(a, scope)
        self.done(a, "t", ttl=3_600_000)
        assert found() == [
            (
                "warning",
                f"{count} marks of work done under {scope} are kept for ever, and no rule says so any more: "
                f"only `dedupe release --task '{scope}' --state done` removes them",
            )
            for count, scope in ((2, "gone"), (1, "t"))
        ]

    def test_a_rule_says_so(self, dedupe_command, local_app):
        rules = {"t": {"lock": "once", "keep": None, "scope": "s"}, "else.*": {"lock": "once", "keep": None}}
        a = local_app(rules)
        a.task()
        for scope in ("s", "else.where"):
            self.done(a, scope)
        assert "for ever" not in dedupe_command(a.app, "check").output
