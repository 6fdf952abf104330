"""Processes that fork and threads that share: each answer reaches its asker, each lease is kept alive."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

from celery_dedupe import duplicate_of
from tests.harness.servers import BROKER, STORE
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LEASE = 3
RULES = {
    "jobs.held": {"lock": "until_finished", "key": ["key"], "lease": LEASE},
    "jobs.quick": "until_finished",
}


def expiries(server):
    """When each claim on a run of ``held`` ends unless renewed, by the server's clock in ms."""
    client = server.client()
    return {key: client.pexpiretime(key) for key in client.keys("dedupe:jobs.held:*")}


def outlive_their_length(server, count):
    """Waits until so many claims have been there for longer than a lease."""
    wait_until(lambda: len(expiries(server)) == count)
    first = expiries(server)
    wait_until(
        lambda: all(expiries(server).get(key, 0) > first[key] + LEASE * 1000 for key in first),
        message=lambda: f"{first} became {expiries(server)}",
    )


FORKING = """
    import json, os, threading
    from celery_dedupe import duplicate_of

    def mixed_up(name):
        count = 0
        for number in range(100):
            first, second = (tasks.quick.delay(f"{name} {number}") for _ in range(2))
            found = duplicate_of(second)
            count += duplicate_of(first) is not None or found is None or found.task_id != first.id
        return count

    # Before it forks the parent has a connection, a lease, and a thread that renews it.
    holding = threading.Thread(target=tasks.held.apply, args=(("parent", "of the parent"),))
    holding.start()
    ledger.note("mixed up", "before", count=mixed_up("before"))
    children = []
    for name in ("a", "b", "c", "d"):
        pid = os.fork()
        if pid == 0:
            ledger.note("mixed up", name, count=mixed_up(name))
            tasks.held.apply((name,))
            os._exit(0)
        children.append(pid)
    ledger.note("mixed up", "parent", count=mixed_up("parent"))
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    holding.join()
"""


def test_four_children_of_a_process_that_has_used_the_store(make_app, valkey, workers, ledger):
    app = make_app(RULES, eager=True)
    program = workers.python(app, FORKING)

    ledger.wait_for(5, ended=False)
    outlive_their_length(valkey, 5)
    assert {note["key"]: note["count"] for note in ledger.notes("mixed up")} == dict.fromkeys(
        ["before", "parent", "a", "b", "c", "d"], 0
    )
    assert len({run.pid for run in ledger.runs()}) == 5
    assert duplicate_of(app.tasks.held.delay("c")).state == "running"
    ledger.open_gate("of the parent")
    # Only now could a child that renews its parent's lease be seen to do so.
    outlive_their_length(valkey, 4)
    ledger.open_gate("gate")

    assert program.output == ""
    assert valkey.client(BROKER).llen(app.queue) == 6 * 100
    assert not expiries(valkey)


def test_32_threads_publish(make_app, valkey):
    app = make_app(RULES)
    mixed_up = []

    def publish(name):
        for number in range(30):
            first, second = (app.tasks.quick.delay(f"{name} {number}") for _ in range(2))
            found = duplicate_of(second)
            if duplicate_of(first) or found is None or found.task_id != first.id:
                mixed_up.append((name, number))

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not mixed_up
    assert valkey.client(BROKER).llen(app.queue) == 32 * 30
    ours = [client for client in valkey.client().client_list() if client["db"] == str(STORE)]
    assert len(ours) <= 32 + 2, "one a thread, that of the counts, and the test's own"


def test_each_task_in_a_new_process(make_app, valkey, workers, ledger):
    app = make_app(RULES)
    worker = workers(app, "--max-tasks-per-child=1", concurrency=1)

    for key in ("a", "b", "c"):
        # A revoked task is the parent's: it uses the store, and forks the next child with that behind it.
        expired = app.tasks.quick.apply_async((key,), expires=datetime.now(timezone.utc) - timedelta(hours=1))
        worker.wait_for_log(f"Discarding revoked task: jobs.quick[{expired.id}]")
        wait_until(lambda: not valkey.client().keys("dedupe:jobs.quick:*"))
        result = app.tasks.held.delay(key, gate=key)
        ledger.wait_for(1, key, ended=False)
        outlive_their_length(valkey, 1)
        assert duplicate_of(app.tasks.held.delay(key)).task_id == result.id
        ledger.open_gate(key)
        assert result.get(timeout=15) == key

    wait_until(lambda: not expiries(valkey))
    assert len({run.pid for run in ledger.runs()}) == 3
    assert worker.stop() == 0
