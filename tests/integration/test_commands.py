"""The round trips that the extension costs, as the server received them."""

from __future__ import annotations

from hashlib import sha1

import pytest

from celery_dedupe import duplicate_of
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.store.redis_scripts import script
from tests.harness.commands import count_commands
from tests.harness.servers import BACKEND, STORE
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

VERBS = {
    sha1(script("clock", "record", verb).encode(), usedforsecurity=False).hexdigest(): verb
    for verb in ("claim", "withdraw", "begin", "renew", "finish")
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


def verbs(seen):
    """What the store was asked, in order; a command that calls no script of ours shows by its name."""
    return [VERBS.get("".join(command.args[:1]), command.name) for command in seen.of(db=STORE)]


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
    claims = valkey.client().dbsize()
    app.tasks.quick.delay("so that the server knows the scripts").get(timeout=15)
    wait_until(lambda: valkey.client().dbsize() == claims)

    with count_commands(valkey) as seen:
        app.tasks.quick.delay("a").get(timeout=15)
        wait_until(lambda: valkey.client().dbsize() == claims)

    assert [verb for verb in verbs(seen) if verb != "DBSIZE"] == ["claim", "begin", "finish"]


def test_a_refused_start_costs_one(make_app, valkey, workers, ledger):
    app = make_app({"jobs.*": {"lock": "while_running", "key": ["key"]}})
    worker = workers(app, concurrency=2)
    app.tasks.quick.delay("so that the server knows the scripts").get(timeout=15)
    wait_until(lambda: valkey.client().dbsize() == 0)
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
    keys = set(valkey.client().keys("dedupe:*"))
    before = {key: valkey.client().pexpiretime(key) for key in keys}

    with count_commands(valkey) as seen:
        wait_until(lambda: all(valkey.client().pexpiretime(key) > before[key] + 1500 for key in keys))

    renewals = seen.of(db=STORE, name="EVALSHA")
    assert len(keys) == 16
    assert len(renewals) >= 2
    assert all(set(command.keys) == keys for command in renewals), "each call renews them all"
    ledger.open_gate("gate")
    ledger.wait_for(8)


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
