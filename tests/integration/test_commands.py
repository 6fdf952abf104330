"""The round trips that the extension costs, as the server received them."""

from __future__ import annotations

from hashlib import sha1

import pytest

from celery_dedupe import buffer, duplicate_of
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.store.redis_scripts import files_of, script
from tests.harness.commands import count_commands
from tests.harness.servers import BACKEND, STORE
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

VERBS = {
    sha1(script("clock", *files_of(verb)).encode(), usedforsecurity=False).hexdigest(): verb
    for verb in ("claim", "withdraw", "begin", "renew", "finish", "now", "count")
}
ONE = {"lock": "until_finished", "key": ["key"]}
THREE = [
    {"lock": "until_finished", "key": ["key"]},
    {"lock": "queue_and_run", "key": "account:{key}", "limit": 2},
    {"lock": "until_started"},
]
RULED = ("jobs.held", "jobs.quick", "jobs.slow")


@pytest.fixture(params=[ONE, THREE], ids=["one policy", "three policies"])
def app(request, make_app):
    """An app whose connections are open, and whose scripts the server knows."""
    app = make_app(dict.fromkeys(RULED, request.param))
    app.tasks.slow.apply_async(("warm",), queue="nobody takes from it")
    app.tasks.slow.apply_async(("warm",), queue="nobody takes from it")
    return app


def verb(command):
    """What the store was asked by it; its name, if it calls no script of ours."""
    words = command.args[:1] if command.name.startswith("EVAL") else ()
    source = "".join(words).encode("latin-1")
    digest = sha1(source, usedforsecurity=False).hexdigest() if command.name == "EVAL" else "".join(words)
    return VERBS.get(digest, command.name)


def verbs(seen):
    """What the store was asked for tasks, in order: what is counted goes out when it likes."""
    asked = map(verb, seen.of(db=STORE))
    return [one for one in asked if one not in ("now", "count", "SCAN")]


def test_a_publish_costs_one(app, valkey):
    with count_commands(valkey) as seen:
        result = app.tasks.held.delay("a")

    assert duplicate_of(result) is None
    assert verbs(seen) == ["claim"]


def test_a_duplicate_of_what_is_queued_costs_one(app, valkey):
    first = app.tasks.held.delay("a")

    with count_commands(valkey) as seen:
        second = app.tasks.held.delay("a")

    assert duplicate_of(second).task_id == first.id
    assert verbs(seen) == ["claim"]
    assert seen.names(key=app.queue) == [], "nothing was sent"


def test_a_duplicate_of_what_runs_costs_one_and_a_look_at_its_result(app, valkey, workers, ledger):
    workers(app, concurrency=1)
    first = app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    with count_commands(valkey) as seen:
        second = app.tasks.held.delay("a")

    assert duplicate_of(second).state == "running"
    assert verbs(seen) == ["claim"]
    assert seen.names(db=BACKEND, key=f"*{first.id}").count("GET") == 1
    ledger.open_gate("gate")


def test_a_start_and_an_end_cost_one_each(app, valkey, workers):
    workers(app, concurrency=1)
    claims = valkey.claims()
    app.tasks.quick.delay("so that the server knows the scripts").get(timeout=15)
    wait_until(lambda: valkey.claims() == claims)

    with count_commands(valkey) as seen:
        app.tasks.quick.delay("a").get(timeout=15)
        wait_until(lambda: valkey.claims() == claims)

    assert verbs(seen) == ["claim", "begin", "finish"]


def test_a_refused_start_costs_one(make_app, valkey, workers, ledger):
    app = make_app({"jobs.*": {"lock": "while_running", "key": ["key"]}})
    worker = workers(app, concurrency=2)
    app.tasks.quick.delay("so that the server knows the scripts").get(timeout=15)
    wait_until(lambda: not valkey.claims())
    app.tasks.held.delay("a")
    ledger.wait_for(1, "a", ended=False)

    with count_commands(valkey) as seen:
        second = app.tasks.held.delay("a")
        worker.wait_for_log(f"[{second.id}] ignored")
        ledger.open_gate("gate")
        worker.stop()

    assert verbs(seen) == ["begin", "finish"], "of the second, and of the first"


def test_many_leases_are_renewed_in_one_call(make_app, valkey, workers, ledger):
    locks = [
        {"lock": "while_running", "lease": "3s"},
        {"lock": "until_finished", "key": ["key"], "lease": "6s"},
    ]
    app = make_app({"jobs.held": locks})
    workers(app, pool="threads", concurrency=8)
    for key in "abcdefgh":
        app.tasks.held.delay(key)
    ledger.wait_for(8, ended=False)
    keys = valkey.claims()
    before = {key: valkey.client().pexpiretime(key) for key in keys}

    with count_commands(valkey) as seen:
        wait_until(lambda: all(valkey.client().pexpiretime(key) > before[key] + 1500 for key in keys))

    renewals = [command for command in seen.of(db=STORE) if verb(command) == "renew"]
    assert len(keys) == 16
    assert len(renewals) >= 2
    assert all(set(command.keys) == keys for command in renewals), "each call renews them all"
    ledger.open_gate("gate")
    ledger.wait_for(8)


@pytest.fixture
def told_to(monkeypatch):
    """This process hands on what it has counted when it is told to."""
    monkeypatch.setattr(buffer, "EVERY", 3600.0)


def test_what_is_counted_of_100_calls_goes_out_in_one_write(told_to, app, valkey):
    app.dedupe.guard.counters.flush()  # So that the server knows these scripts, too.
    with count_commands(valkey) as seen:
        for key in range(100):
            app.tasks.quick.delay(f"{key}")
        app.tasks.quick.delay("0")
        app.dedupe.guard.counters.flush()

    asked = [verb(command) for command in seen.of(db=STORE)]
    assert asked == ["claim"] * 101 + ["now", "count"]
    # slow is what the fixture has called.
    assert app.dedupe.guard.store.counts("dedupe:stats") == {
        ("jobs.slow", "published"): 1,
        ("jobs.slow", "dropped"): 1,
        ("jobs.quick", "published"): 100,
        ("jobs.quick", "dropped"): 1,
    }


def note_look_ups(under_test):
    """Notes each search through the rules."""
    look_up = RuleSet._look_up

    def noted(rules, name):
        under_test.ledger.note("look up", name)
        return look_up(rules, name)

    RuleSet._look_up = noted


def test_a_task_that_no_rule_matches_costs_nothing(make_app, valkey, workers, ledger):
    app = make_app({"reports.*": "until_finished", "jobs.held": ONE}, setup=note_look_ups)
    worker = workers(app, concurrency=1)

    with count_commands(valkey) as seen:
        results = [app.tasks.quick.delay("same") for _ in range(20)]
        worker.wait_for_log(f"[{results[-1].id}] succeeded")
        worker.stop()

    assert len(ledger.wait_for(20, "same")) == 20
    assert seen.of(db=STORE) == []
    assert app.dedupe._guard is None, "the publisher did not even open the store"
    searches = [note["pid"] for note in ledger.notes("look up", "jobs.quick")]
    assert len(searches) == 2, "a name is searched for once a program and remembered"
    assert worker.pid in searches, "before the pool is forked, so that each child knows it"
