"""While a deployment rolls: callers and workers of two steps at a time, with the old library and without."""

from __future__ import annotations

import uuid
from itertools import product

import pytest

from tests.apps.rollout import LIBRARIES, open_rollout
from tests.conftest import WORKERS
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: library.name)
def rollout(request, tmp_path_factory, reaper):
    pytest.importorskip(request.param.module)
    with open_rollout(request.param, tmp_path_factory.mktemp("rollout"), reaper) as rollout:
        yield rollout


@pytest.fixture(autouse=True)
def fresh(request, rollout):
    request.node.stash[WORKERS] = rollout
    yield
    rollout.clear()


@pytest.fixture
def key():
    return uuid.uuid4().hex[:8]


only_heimdall = pytest.mark.parametrize(
    "rollout",
    [library for library in LIBRARIES if library.name == "celery-heimdall"],
    ids=lambda library: library.name,
    indirect=True,
    scope="module",
)


def pairs(*steps):
    """Whoever calls, and whoever runs it."""
    return pytest.mark.parametrize(("caller", "worker"), list(product(steps, steps)))


def wait_all_free(rollout):
    def left():
        return rollout.old_locks() + rollout.claims()

    wait_until(lambda: not left(), 30, lambda: f"left: {left()}")


@pairs("before", "observe")
def test_to_observe_changes_nothing(rollout, caller, worker, key):
    rollout.hold(f"report {key}")
    first, second = (rollout.call(caller, worker, "make_report", key) for _ in range(2))
    rollout.let_go(f"report {key}")
    rollout.wait_done(f"report {key}", 1)
    wait_until(lambda: not rollout.old_locks(), 30, rollout.old_locks)
    third = rollout.call(caller, worker, "make_report", key)
    rollout.wait_done(f"report {key}", 2)

    assert (first, second, third) == (True, False, True)
    if caller == "observe" != worker:
        assert rollout.claims(), "nobody gives back what it has claimed: that is why workers come first"
    else:
        wait_all_free(rollout)


@pairs("observe", "bridge")
def test_the_switch_leaves_no_lock(rollout, caller, worker, key):
    for number in (1, 2):
        assert rollout.call(caller, worker, "make_report", key)
        rollout.wait_done(f"report {key}", number)
        wait_all_free(rollout)
    for task in rollout.library.tasks:
        args = (key, "a reason") if task == "sync_account" else (key,)
        for _ in range(2):
            assert rollout.call(caller, worker, task, *args)
            wait_all_free(rollout)


@pytest.mark.parametrize("caller", ["observe", "bridge"])
def test_after_the_switch_a_retry_runs(rollout, caller, key):
    assert rollout.call(caller, "bridge", "fetch_feed", key)
    rollout.wait_done(f"feed {key}", 2)
    wait_all_free(rollout)


@pytest.mark.parametrize(
    ("first", "second"),
    dict.fromkeys(
        [
            *product(product(["observe"], ["observe", "bridge"]), repeat=2),
            *product(product(["observe", "bridge"], ["bridge"]), repeat=2),
        ]
    ),
    ids="-".join,
)
def test_the_switch_loses_no_call(rollout, first, second, key):
    """Workers are switched first, then callers: a call during a run is a duplicate of it, or runs."""
    rollout.hold(f"report {key}")
    assert rollout.call(*first, "make_report", key)
    wait_until(lambda: rollout.started(f"report {key}"))
    waiting = rollout.worker("bridge").log.count("] wait ")

    sent = rollout.call(*second, "make_report", key)

    assert sent == (first[0] == "bridge" and second[0] == "observe")
    if sent:
        wait_until(lambda: rollout.worker("bridge").log.count("] wait ") > waiting)
    rollout.let_go(f"report {key}")
    rollout.wait_done(f"report {key}", 1 + sent)
    wait_all_free(rollout)


@only_heimdall
def test_the_switch_counts_what_was_started_before(rollout, key):
    for caller in ("observe", "bridge"):
        assert rollout.call(caller, "observe", "fetch_page", f"{key} {caller}")
        rollout.wait_done(f"page {key} {caller}", 1)

    assert rollout.call("bridge", "bridge", "fetch_page", key)
    rollout.worker("bridge").wait_for_log("its rate has a start free in")

    assert not rollout.started(f"page {key}")


@only_heimdall
def test_the_switch_runs_what_an_old_lock_is_in_the_way_of(rollout, key):
    """The old library would end such a run unseen. Who was killed leaves such a lock, and a period does."""
    rollout.hold(f"report {key}")
    assert rollout.call("observe", "observe", "make_report", key)
    wait_until(lambda: rollout.started(f"report {key}"))
    rollout.forget_claims()

    assert rollout.call("bridge", "bridge", "make_report", key)

    wait_until(lambda: rollout.started(f"report {key}") == 2)


@pairs("bridge", "after")
def test_the_end_leaves_no_lock(rollout, caller, worker, key):
    rollout.hold(f"report {key}")
    first, second = (rollout.call(caller, worker, "make_report", key) for _ in range(2))
    rollout.let_go(f"report {key}")
    rollout.wait_done(f"report {key}", 1)
    wait_all_free(rollout)
    third = rollout.call(caller, worker, "make_report", key)
    rollout.wait_done(f"report {key}", 2)

    assert (first, second, third) == (True, False, True)
    wait_all_free(rollout)


def test_without_the_bridge_a_lock_stays(rollout, key):
    assert rollout.call("observe", "after", "make_report", key)
    rollout.wait_done(f"report {key}", 1)
    wait_until(lambda: not rollout.claims(), 30, rollout.claims)

    assert rollout.old_locks()
    assert not rollout.call("observe", "observe", "make_report", key)


def test_to_enforce_beside_the_old_base_leaves_a_lock(rollout, key):
    rollout.hold(f"report {key}")
    assert rollout.call("enforce", "enforce", "make_report", key)
    assert not rollout.call("enforce", "enforce", "make_report", key, "blue"), (
        "the default: another call there"
    )
    rollout.let_go(f"report {key}")
    rollout.wait_done(f"report {key}", 1)
    wait_until(lambda: not rollout.claims(), 30, rollout.claims)

    assert rollout.old_locks()
    assert not rollout.call("enforce", "enforce", "make_report", key, "blue")
