"""Publishers, workers and a killer at random, over all locks at once; then the ledger is checked.

``DEDUPE_CHAOS_SECONDS`` says how long it takes in all (60), ``DEDUPE_CHAOS_SEED`` repeats one run's choices.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter, defaultdict
from dataclasses import replace

import psutil
import pytest

from tests.harness.processes import ProcessFailed
from tests.harness.servers import BROKER
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

logger = logging.getLogger(__name__)

SECONDS = float(os.environ.get("DEDUPE_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("DEDUPE_CHAOS_SEED", "1"))

PUBLISHERS, WORKERS, KEYS = 8, 4, 50
LEASE = 4  # seconds; a run takes 0.1 at most, so that a busy machine does not end a lease that is needed
RUNNING = {"key": ["key"], "lease": LEASE}
RULES = {
    "until_started": {"lock": "until_started", "key": ["key"]},
    "while_running": {"lock": "while_running", **RUNNING},
    "queue_and_run": {"lock": "queue_and_run", **RUNNING},
    "until_finished": {"lock": "until_finished", **RUNNING},
    "until_expired": {"lock": "until_expired", "key": ["key"], "period": "2s"},
    "once": {"lock": "once", **RUNNING, "keep": "2s"},
}
APART = ("while_running", "queue_and_run", "until_finished", "once")

PUBLISHER = """
    import random, sys, time
    from celery_dedupe import duplicate_of

    seed, seconds, keys = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    names = sys.argv[4].split()
    chance = random.Random(seed)
    ledger.wait_gate("begin")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        name, key = chance.choice(names), chance.randrange(keys)
        result = app.send_task(f"chaos.{name}", [f"{name} {key}", chance.uniform(0, 0.1)])
        kind = "accepted" if duplicate_of(result) is None else "dropped"
        ledger.note(kind, f"{name} {key}", task_id=result.id)
        time.sleep(chance.expovariate(40))
"""


def define_tasks(under_test):
    """One task for each lock; the lock's name is the first word of its key."""

    def body(self, key, seconds):
        with under_test.ledger.run(self.name, key, self.request.id, self.request.retries):
            time.sleep(seconds)

    for name in RULES:
        under_test.app.task(body, bind=True, shared=False, name=f"chaos.{name}")


@pytest.mark.timeout(SECONDS * 3 + 60)
def test_nothing_is_lost_and_nothing_overlaps(make_app, valkey, workers, ledger):
    app = make_app(
        {f"chaos.{name}": rule for name, rule in RULES.items()},
        setup=define_tasks,
        conf={
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "worker_prefetch_multiplier": 1,
        },
    )
    crew = [workers(app, concurrency=2) for _ in range(WORKERS)]
    arguments = (f"{SECONDS / 3}", f"{KEYS}", " ".join(RULES))
    publishers = [workers.python(app, PUBLISHER, f"{SEED} {n}", *arguments) for n in range(PUBLISHERS)]
    ledger.open_gate("begin")
    kills = kill_children(crew, while_alive=publishers)
    assert [publisher.wait() for publisher in publishers] == [0] * PUBLISHERS

    wait_until(lambda: is_quiet(app, valkey), SECONDS, lambda: f"{left(app, valkey)}", interval=0.25)

    logger.info("%s", report(ledger, kills))
    assert kills
    check(app, ledger)


def kill_children(crew, while_alive):
    """SIGKILL to a child of some worker's pool every 300 ms. How many there were."""
    chance = random.Random(SEED)
    kills = 0
    while any(publisher.alive for publisher in while_alive):
        worker = chance.choice(crew)
        try:
            worker.kill_child(chance.choice(worker.child_pids()))
            kills += 1
        except (ProcessFailed, ProcessLookupError, psutil.NoSuchProcess, IndexError):
            pass  # It has gone by itself, or none has come up yet.
        time.sleep(0.3)
    return kills


def left(app, valkey):
    """What is still in the queue, with a worker, and in the claim store.

    A trace that a killed run of ``once`` has left is no claim: it stops nobody, and is there to be asked.
    """
    broker, store = valkey.client(BROKER), app.dedupe.guard.store
    claims = [found for found in store.scan("dedupe:*") if replace(found[1], traces=())]
    return broker.llen(app.queue), broker.hgetall("unacked"), claims


def is_quiet(app, valkey):
    return not any(left(app, valkey))


def check(app, ledger):
    assert calls_of(ledger, "accepted").keys() == RULES.keys()
    assert calls_of(ledger, "dropped").keys() == RULES.keys() - {"while_running"}
    runs, well = ledger.runs(), defaultdict(set)
    for run in runs:
        if run.outcome == "ok":
            well[run.key].add(run.task_id)
    assert not [run for run in runs if run.slot > 0 and run.key.split()[0] in APART], "two ran at once"
    for note in ledger.notes("accepted"):
        key, task_id = note["key"], note["task_id"]
        state = app.app.AsyncResult(task_id).state
        if state == "SUCCESS":
            assert task_id in well[key], f"{key}: {task_id} ended well and never ran"
        else:
            assert state == "REVOKED", f"{key}: {task_id} is {state}"
            assert well[key], f"{key}: {task_id} is a duplicate, and nobody did the work"


def calls_of(ledger, kind):
    return Counter(note["key"].split()[0] for note in ledger.notes(kind))


def report(ledger, kills):
    calls = calls_of(ledger, "accepted") + calls_of(ledger, "dropped")
    runs = ledger.runs()
    cut = sum(run.ended is None for run in runs)
    return f"calls {dict(calls)}, runs {len(runs)}, of which {cut} were cut short by one of {kills} kills"
