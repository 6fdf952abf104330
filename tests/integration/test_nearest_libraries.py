"""The probes that the four nearest libraries were measured with, each row right on this project.

One test a row of the table that says what they do (at the end of the list of cases that users have reported).
"""

from __future__ import annotations

import logging
import os
import signal
import uuid

import pytest
from celery import Celery, chain, chord, group

from celery_dedupe import Dedupe, duplicate_of
from celery_dedupe.core.asks import Attempt, BeginAsk
from tests.apps.stage import close, define_variants, on_stage, variant
from tests.conftest import WORKERS
from tests.contract.asks import free
from tests.harness.commands import count_commands
from tests.harness.servers import BROKER, STORE, ValkeyServer
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

LEASE = 2
RULES = {"probe.*": {"lock": "until_finished", "lease": LEASE}}
IDLE = "nobody takes from it"


def define(under_test):
    app, ledger = under_test.app, under_test.ledger
    define_variants(under_test, ["probe"])

    @app.task(bind=True, shared=False, name="probe.f")
    def f(self, x, y=0):
        with ledger.run(self.name, x, self.request.id):
            return [x, y]

    @app.task(bind=True, shared=False, name="probe.late", acks_late=True, reject_on_worker_lost=True)
    def late(self, key):
        """Kills its process the first time."""
        with ledger.run(self.name, key, self.request.id):
            if len(ledger.runs(key)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return key


@pytest.fixture(scope="module")
def stage(reaper, tmp_path_factory):
    with on_stage(reaper, tmp_path_factory.mktemp("nearest")) as stage:
        # What is counted goes out when it likes: without it a test can tell what one call costs.
        stage.app = stage.make_app(RULES, setup=define, stats=False)
        stage.worker = stage.workers(stage.app, concurrency=3)
        yield stage


@pytest.fixture(autouse=True)
def show_logs(request, stage):
    request.node.stash[WORKERS] = stage.workers


@pytest.fixture
def probe(stage):
    """The tasks under the rule."""
    return variant(stage.app, "probe")


@pytest.fixture
def ledger(stage):
    return stage.ledger


@pytest.fixture
def key():
    return uuid.uuid4().hex[:8]


def accepted(task, *args, timeout=20):
    """The result of a publish, once one is no duplicate."""

    def publish():
        result = task.delay(*args)
        return None if duplicate_of(result) else result

    return wait_until(publish, timeout, f"{task.name}{args} is refused")


def are_one(stage, first, second):
    """Whether of two calls, each ``(args, kwargs)``, the second is a duplicate of the first."""
    f = stage.app.app.tasks["probe.f"]
    results = [f.apply_async(*call, queue=IDLE) for call in (first, second)]
    assert duplicate_of(results[0]) is None
    found = duplicate_of(results[1])
    return found is not None and found.task_id == results[0].id


def test_autoretry_for_that_fails_once_succeeds(probe, ledger, key):
    result = probe.autoretries.delay(key, 1)

    assert result.get(timeout=20) == key
    assert [run.outcome for run in ledger.runs(key)] == ["Flaky", "ok"]


def test_after_a_killed_child_with_early_ack_the_lock_is_free_within_the_lease(stage, probe, ledger, key):
    """Case 1: they keep it for an hour, or for ever."""
    probe.held.delay(key, key)
    (run,) = ledger.wait_for(1, key, ended=False)

    stage.worker.kill_child(run.pid)

    ledger.open_gate(key)
    assert accepted(probe.held, key, key, timeout=5 * LEASE).get(timeout=20) == key


def test_a_killed_child_with_late_ack_runs_again(probe, ledger, key):
    """Case 26."""
    result = probe.late.delay(key)

    assert result.get(timeout=20) == key
    assert [run.outcome for run in ledger.runs(key)] == [None, "ok"]
    assert accepted(probe.late, key).get(timeout=20) == key


def test_what_is_revoked_before_its_start_is_free(stage, probe, ledger, key):
    """Case 3."""
    first = probe.f.apply_async((key,), countdown=600)
    stage.worker.wait_for_log(f"probe.f[{first.id}] received")

    first.revoke()

    assert accepted(probe.f, key).get(timeout=20) == [key, 0]
    assert first.id not in ledger.ids(key)


def test_positional_and_keyword_arguments_are_one_call(stage, key):
    assert are_one(stage, ((key, 1), {}), ((), {"x": key, "y": 1}))
    assert are_one(stage, ((f"{key}7",), {"y": 1}), ((), {"y": 1, "x": f"{key}7"}))


def test_a_default_given_and_left_out_are_one_call(stage, key):
    """Case 48."""
    assert are_one(stage, ((key,), {}), ((key,), {"y": 0}))
    assert are_one(stage, ((f"{key}8", 0), {}), ((), {"x": f"{key}8"}))
    assert not are_one(stage, ((f"{key}9",), {}), ((f"{key}9",), {"y": 1}))


def test_the_end_of_a_run_frees_nothing_of_the_next_owner(stage, probe, ledger, key):
    first = probe.held.delay(key, key)
    ledger.wait_for(1, key, ended=False)
    store = stage.app.dedupe.guard.store
    (lock,) = [name for name, record in store.scan("dedupe:*") if record.runs_of(first.id)]
    free(store, [lock])
    store.begin([BeginAsk(lock, slot=True, lease=60_000)], Attempt("another", "its token"))

    ledger.open_gate(key)

    assert first.get(timeout=20) == key
    stage.worker.wait_for_log(f"probe.held[{first.id}] ended (succeeded) after it lost its lease")
    assert [run.task_id for run in store.read(lock).running] == ["another"]
    assert duplicate_of(probe.held.delay(key, key)).task_id == "another"


def test_a_claim_outlives_a_countdown_of_two_hours(stage, probe, key):
    first = probe.f.apply_async((key,), countdown=7200, queue=IDLE)

    found = duplicate_of(probe.f.delay(key))

    assert found.task_id == first.id
    assert 7200 < found.expires_in <= 7200 + 3600
    assert 7_200_000 < stage.server.client(STORE).pttl(found.key) <= 10_800_000


def test_a_publish_by_name_meets_the_same_lock(stage, probe, key):
    """Case 33: from an app that has the task, and from one that has only the rules."""
    first = probe.f.apply_async((key,), {"y": 5}, queue=IDLE)
    by_name = Celery("by name", set_as_current=False, broker=stage.app.app.conf.broker_url)
    by_name.conf.update(
        result_backend=stage.app.app.conf.result_backend,
        dedupe_url=stage.app.app.conf.dedupe_url,
        dedupe_rules={"probe.*": {**RULES["probe.*"], "params": ["x", "y"]}},
    )
    Dedupe(by_name).init_app()

    assert duplicate_of(stage.app.app.send_task("probe.f", [key, 5])).task_id == first.id
    assert duplicate_of(by_name.send_task("probe.f", [key, 5])).task_id == first.id
    assert duplicate_of(by_name.send_task("probe.f", kwargs={"x": key, "y": 5})).task_id == first.id
    close(by_name)


def test_a_duplicate_as_the_first_link_loses_no_chain(probe, ledger, key):
    """Case 37."""
    chains = [chain(probe.slow.s(key, 0.5), probe.append.s(f"{key} {number}")) for number in (1, 2)]

    results = [one.delay() for one in chains]

    assert [result.get(timeout=20) for result in results] == [[key, f"{key} 1"], [key, f"{key} 2"]]
    assert ledger.overlaps(key) == []


def test_a_group_of_two_identical_comes_to_its_end(probe, ledger, key):
    """Case 38."""
    result = group(probe.f.s(key), probe.f.s(key)).delay()

    assert result.get(timeout=20) == [[key, 0]] * 2
    assert ledger.overlaps(key) == []


def test_a_chord_with_two_identical_headers_runs_its_body(probe, ledger, key):
    """Case 38."""
    result = chord([probe.quick.s(key), probe.quick.s(key)], probe.gather.s(f"{key} body")).delay()

    assert result.get(timeout=20) == [key, key]
    assert len(ledger.runs(f"{key} body")) == 1


def test_with_the_store_down_a_publish_goes_out(stage, reaper, ledger, key, caplog):
    """Nothing is raised, nothing is dropped, and it is told."""
    caplog.set_level(logging.INFO, "celery_dedupe")
    gone = ValkeyServer(reaper)
    gone.start()
    app = stage.make_app(RULES, setup=define, url=gone.store_url)
    worker = stage.workers(app, concurrency=1)
    gone.stop()

    results = [variant(app, "probe").f.delay(key) for _ in range(3)]

    assert [result.get(timeout=20) for result in results] == [[key, 0]] * 3
    assert [duplicate_of(result) for result in results] == [None] * 3
    assert sorted(ledger.ids(key)) == sorted(result.id for result in results)
    assert str(gone.port) in caplog.text
    worker.stop()
    gone.close()


def test_a_duplicate_asks_the_store_once_and_sends_the_broker_nothing(stage, probe, key):
    """They take 2 ms to 910 ms; a count of what is sent does not depend on how busy the machine is."""
    probe.f.apply_async((key,), queue=IDLE)

    with count_commands(stage.server) as seen:
        results = [probe.f.apply_async((key,), queue=IDLE) for _ in range(20)]

    assert all(duplicate_of(result) for result in results)
    assert seen.names(db=STORE) == ["EVALSHA"] * 20
    assert "LPUSH" not in seen.names(db=BROKER)  # a worker at rest has more to say there


def test_one_round_trip_each_for_publish_duplicate_start_and_end(stage, probe, ledger, key):
    """They take up to 1, 11, 11 and 2."""
    claims = stage.server.claims()
    probe.f.delay(f"{key} so that all connections are open").get(timeout=20)
    wait_until(lambda: stage.server.claims() <= claims)

    def store_asked(do):
        with count_commands(stage.server) as seen:
            value = do()
        return value, [name for name in seen.names(db=STORE) if name == "EVALSHA"]

    def run():
        stage.app.app.control.add_consumer(key, reply=True, limit=1)
        first.get(timeout=20)
        wait_until(lambda: stage.server.claims() <= claims)

    first, publish = store_asked(lambda: probe.f.apply_async((key,), queue=key))
    _, duplicate = store_asked(lambda: probe.f.apply_async((key,), queue=key))
    _, start_and_end = store_asked(run)

    assert (len(publish), len(duplicate), len(start_and_end)) == (1, 1, 2)
