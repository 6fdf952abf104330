"""Every lock on real workers: what refuses a publish and a start, what stays, what each choice does."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery import _state, shared_task
from celery.exceptions import TaskRevokedError

from celery_dedupe import DuplicateTask, duplicate_of
from celery_dedupe.core.locks import LOCKS
from tests.apps.families import note_events
from tests.apps.stage import define_variants, on_stage, variant
from tests.conftest import WORKERS
from tests.harness.ledger import Ledger
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

# What is in the way of a publish, and how the incumbent is told then.
REFUSES_A_PUBLISH = {
    "until_started": {"queued": "queued"},
    "while_running": {},
    "queue_and_run": {"queued": "queued"},
    "until_finished": {"queued": "queued", "running": "running"},
    "until_expired": {"queued": "queued", "running": "queued", "succeeded": "queued"},
    "once": {"queued": "queued", "running": "running", "succeeded": "done"},
}
# What becomes of a start while another one runs, and after its good end.
START = {
    "until_started": ("beside", "runs"),
    "while_running": ("skipped", "runs"),
    "queue_and_run": ("after", "runs"),
    "until_finished": ("skipped", "runs"),
    "until_expired": ("beside", "runs"),
    "once": ("skipped", "skipped"),
}
STATES = ("queued", "running", "succeeded", "failed")
HOUR, LEASE, WEEK = 3600, 60, 7 * 24 * 3600
LONGEST = {"queued": HOUR, "running": LEASE, "done": WEEK}

RUNNING = {"lock": "while_running", "key": ["key"]}
FINISHED = {"lock": "until_finished", "key": ["key"]}
CHOICES = {
    "none": {**FINISHED, "on_duplicate": "none", "scope": "none"},
    "raise": {**FINISHED, "on_duplicate": "raise", "scope": "raise"},
    "skips": RUNNING,
    "waits": {**RUNNING, "on_conflict": "wait"},
    "raises": {**RUNNING, "on_conflict": "raise", "scope": "raises"},
    "impatient": {**RUNNING, "on_conflict": "wait", "wait_limit": "1s"},
    "three": {**RUNNING, "limit": 3},
    "one": {**FINISHED, "scope": "shared"},
    "two": {**FINISHED, "scope": "shared"},
    "all": "until_finished",
    "names": FINISHED,
    "nothing": {"lock": "until_finished", "key": []},
    "template": "until_finished",
    "dotted": {"lock": "until_finished", "key": "tests.integration.test_locks.upper"},
    "both": [{"lock": "until_started"}, {**RUNNING, "key": "account:{key}", "on_conflict": "wait"}],
}
RULES = {
    **{
        f"{lock}.*": {
            "lock": lock,
            "key": ["key"],
            "scope": lock,
            **({"period": HOUR} if traits.periodic else {}),
        }
        for lock, traits in LOCKS.items()
    },
    **{f"{name}.*": rule for name, rule in CHOICES.items()},
    "template.gated": {"lock": "until_finished", "key": "{key}/{value.account.id}/{value.tags.0}"},
    "own.*": "until_started",
}
SCHEDULE = {
    "bound": {
        "task": "skips.held",
        "schedule": 1,
        "args": ["bound by its entry", "beat"],
        "options": {"dedupe": {"lock": "until_finished"}},
    },
    "free": {
        "task": "skips.held",
        "schedule": 1,
        "args": ["freed by its entry", "beat"],
        "options": {"dedupe": False},
    },
}


def define_gated(app, ledger, name):
    @app.task(bind=True, shared=False, name=name)
    def gated(self, key, value=None):
        """Runs until the test opens the gate of its id."""
        with ledger.run(self.name, self.request.id, self.request.id):
            ledger.wait_gate(self.request.id)
            return self.request.id


def upper(key, value=None):
    return key.upper()


FOLDERS = {}  # where each app's ledger is, by the app's name


def held(self, key, gate):
    # One function for all apps: a shared task is also every earlier app's that is still there.
    ledger = Ledger(FOLDERS[self.app.main])
    with ledger.run(self.name, key, self.request.id):
        ledger.wait_gate(gate)
        return key


def define(under_test):
    app, ledger = under_test.app, under_test.ledger
    define_variants(under_test, [*LOCKS, *CHOICES])
    note_events(under_test)

    @app.task(bind=True, shared=False, name="until_finished.draws")
    def draws(self, key, gate):
        """Returns what no other run does."""
        with ledger.run(self.name, key, self.request.id):
            ledger.wait_gate(gate)
            return uuid.uuid4().hex

    for name in KEYS:
        define_gated(app, ledger, f"{name}.gated")
    FOLDERS[app.main] = ledger.folder
    app.task(held, bind=True, shared=False, name="own.held", dedupe={**RUNNING, "scope": "own"})
    shared_task(held, bind=True, name="own.shared", dedupe={**RUNNING, "scope": "own"})
    app.task(held, bind=True, shared=False, name="own.free", dedupe=False)
    stubborn = {"autoretry_for": (Exception,), "default_retry_delay": 0.1, "max_retries": 2}
    app.task(held, bind=True, shared=False, name="raises.stubborn", **stubborn)

    @app.task(bind=True, shared=False, name="jobs.calls", **stubborn)
    def calls(self, key):
        with ledger.run(self.name, f"calls {key}", self.request.id, self.request.retries):
            app.tasks["raise.quick"].delay(key)


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def stage(request, reaper, tmp_path_factory):
    """An app with a rule for each lock and choice, ``.app``, and room for five tasks or, on solo, two."""
    with (
        pytest.MonkeyPatch.context() as patch,
        on_stage(reaper, tmp_path_factory.mktemp(request.param)) as stage,
    ):
        # A shared task is every later app's of this process: not of those in other modules.
        patch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
        conf = {"beat_schedule": SCHEDULE, "worker_prefetch_multiplier": 1}
        stage.app = stage.make_app(RULES, setup=define, conf=conf)
        stage.stranger = stage.without_extension(stage.app)
        for _ in range(2 if request.param == "solo" else 1):
            stage.workers(stage.app, pool=request.param, concurrency=5)
        yield stage


@pytest.fixture(autouse=True)
def show_logs(request, stage):
    request.node.stash[WORKERS] = stage.workers


@pytest.fixture
def ledger(stage):
    return stage.ledger


@pytest.fixture
def key():
    return uuid.uuid4().hex[:8]


prefork = pytest.mark.parametrize("stage", ["prefork"], indirect=True)


def put_aside(task, args, kwargs=None):
    """Publishes to a queue from which nobody takes."""
    return task.apply_async(args, kwargs, queue="nobody takes from it")


def bring_to(state, stage, tasks, key):
    """A task that is in that state; one that runs waits for the gate ``key``."""
    if state == "queued":
        return put_aside(tasks.quick, (key,))
    if state == "running":
        first = tasks.held.delay(key, key)
        stage.ledger.wait_for(1, key, ended=False)
        return first
    first = (tasks.quick if state == "succeeded" else tasks.fails).delay(key)
    first.get(timeout=20, propagate=False)
    # Celery stores a result before it tells of the end.
    wait_until(lambda: not holds(stage, first.id, "running"), 20)
    if state == "failed":
        wait_until(lambda: not holds(stage, first.id, "queued"), 20)
    return first


def holds(stage, task_id, state):
    """Whether the task is queued, or running, in any record."""
    records = [record for _, record in stage.app.dedupe.guard.store.scan("dedupe:*")]
    return any(part.task_id == task_id for record in records for part in getattr(record, state))


def told(ledger, result, kind="refused"):
    """The events on a task, once there is one."""
    return wait_until(lambda: ledger.notes(kind, result.id), 20, f"no {kind} of {result.id}")


def is_duplicate(result, first):
    """The task ended REVOKED, and names the other."""
    with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
        result.get(timeout=20)
    return result.state == "REVOKED"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("lock", LOCKS)
def test_what_a_publish_is_refused_by(stage, ledger, key, lock, state):
    tasks = variant(stage.app, lock)
    first = bring_to(state, stage, tasks, key)

    found = duplicate_of(second := put_aside(tasks.quick, (key,)))

    expected = REFUSES_A_PUBLISH[lock].get(state)
    if expected is None:
        assert found is None
        assert second.id != first.id
    else:
        assert (found.task_id, found.task, found.state) == (first.id, tasks.quick.name, expected)
        assert second.id == first.id, "the caller gets the incumbent's result"
        assert 0 < found.expires_in <= LONGEST[expected]
        assert found.key.startswith(f"dedupe:{lock}:")
    ledger.open_gate(key)


@pytest.mark.parametrize("state", ["running", "succeeded", "failed"])
@pytest.mark.parametrize("lock", LOCKS)
def test_what_a_start_is_refused_by(stage, ledger, key, lock, state):
    """Case 34: the second message is of a program without the extension, so only its start can be refused."""
    tasks = variant(stage.app, lock)
    first = bring_to(state, stage, tasks, key)
    strangers = variant(stage.stranger, lock)

    second = (strangers.held if state == "running" else strangers.quick).delay(key)

    while_running, once_done = START[lock]
    expected = {"running": while_running, "succeeded": once_done, "failed": "runs"}[state]
    if expected == "skipped":
        assert is_duplicate(second, first)
        assert ledger.ids(key) == [first.id]
    elif expected == "beside":
        wait_until(lambda: ledger.peak(key) == 2)
    elif expected == "after":
        assert told(ledger, second)[0]["decision"] == "wait"
        assert ledger.ids(key) == [first.id]
    ledger.open_gate(key)
    ledger.open_gate("gate")
    if expected != "skipped":
        assert second.get(timeout=20) == key
        assert ledger.ids(key) == [first.id, second.id]
    if expected != "beside":
        assert ledger.overlaps(key) == []


@prefork
def test_all_callers_get_one_result(stage, ledger, key):
    draws = stage.app.app.tasks["until_finished.draws"]
    first = draws.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    results = [draws.delay(key, key) for _ in range(10)]
    elsewhere = stage.workers.python(
        stage.app,
        """
        import sys
        from celery_dedupe import duplicate_of
        result = app.tasks["until_finished.draws"].delay(sys.argv[1], sys.argv[1])
        assert duplicate_of(result)
        ledger.open_gate(sys.argv[1])
        print(result.get(timeout=20))
        """,
        key,
    )

    value = first.get(timeout=20)
    assert {result.get(timeout=20) for result in results} == {value}
    assert elsewhere.output.strip() == value
    assert ledger.ids(key) == [first.id]
    assert draws.delay(key, key).get(timeout=20) != value, "what is called later is another run"


@prefork
def test_the_caller_of_a_duplicate_gets_none(stage, ledger, key):
    tasks = variant(stage.app, "none")
    bring_to("running", stage, tasks, key)

    assert tasks.quick.delay(key) is None
    assert tasks.quick.apply_async((key,)) is None
    assert stage.app.app.send_task("none.quick", [key]) is None

    ledger.open_gate(key)
    ledger.wait_for(1, key)
    assert tasks.quick.delay(f"{key} another").get(timeout=20) == f"{key} another"


@prefork
@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_duplicate_raises_and_names_the_culprit(stage, ledger, key, state):
    tasks = variant(stage.app, "raise")
    first = bring_to(state, stage, tasks, key)

    with pytest.raises(DuplicateTask) as caught:
        tasks.quick.delay(key)

    error = caught.value
    assert (error.task, error.task_id, error.state) == ("raise.quick", first.id, state)
    assert LONGEST[state] - 20 < error.expires_in <= LONGEST[state]
    assert first.id in str(error)
    assert f"{error.expires_in:.1f} s" in str(error)
    ledger.open_gate(key)


@prefork
def test_a_task_that_retries_on_everything_survives_the_duplicates_it_calls(stage, ledger, key):
    """Case 24: the error goes through pickle and JSON, on a retry and at the end."""
    first = bring_to("running", stage, variant(stage.app, "raise"), key)

    result = stage.app.app.tasks["jobs.calls"].delay(key)

    with pytest.raises(DuplicateTask) as caught:
        result.get(timeout=20)
    assert (caught.value.task_id, caught.value.state) == (first.id, "running")
    assert caught.value.expires_in > 0
    runs = ledger.wait_for(3, f"calls {key}")
    assert [(run.attempt, run.outcome) for run in runs] == [(n, "DuplicateTask") for n in range(3)]
    ledger.open_gate(key)
    assert first.get(timeout=20) == key


@pytest.mark.parametrize("name", ["skips", "waits", "raises"])
def test_what_becomes_of_a_start_that_meets_another(stage, ledger, key, name):
    tasks = variant(stage.app, name)
    first = bring_to("running", stage, tasks, key)

    second = tasks.quick.delay(key)

    if name == "skips":
        # The two tasks have scopes of their own.
        assert second.get(timeout=20) == key
        second = tasks.held.delay(key, "another gate")
        assert is_duplicate(second, first)
    elif name == "waits":
        second = tasks.held.delay(key, key)
        assert told(ledger, second)[0]["decision"] == "wait"
        wait_until(lambda: len(told(ledger, second)) == 2, 20)
        assert second.state == "PENDING"
    else:
        with pytest.raises(DuplicateTask) as caught:
            second.get(timeout=20)
        assert (caught.value.task_id, caught.value.state) == (first.id, "running")
        assert second.state == "FAILURE"
    ledger.open_gate(key)
    assert first.get(timeout=20) == key
    if name == "waits":
        assert second.get(timeout=20) == key
        assert [run.attempt for run in ledger.runs(key)] == [0, 0, 0], "a wait is not counted as a retry"
    assert tasks.held.delay(key, key).get(timeout=20) == key, "the refused one holds nothing"


@prefork
def test_a_start_that_raises_is_not_retried(stage, ledger, key):
    """Case 24: ``autoretry_for=(Exception,)`` does not make a retry of it, and no process dies of it."""
    first = bring_to("running", stage, variant(stage.app, "raises"), key)
    children = sorted(run.pid for run in ledger.runs(key))

    second = stage.app.app.tasks["raises.stubborn"].delay(key, key)

    with pytest.raises(DuplicateTask) as caught:
        second.get(timeout=20)
    assert caught.value.task_id == first.id
    ledger.open_gate(key)
    assert first.get(timeout=20) == key
    assert ledger.ids(key) == [first.id]
    assert [run.pid for run in ledger.runs(key)] == children
    assert len(ledger.notes("refused", second.id)) == 1


@prefork
def test_a_wait_has_its_limit(stage, ledger, key):
    held = variant(stage.app, "impatient").held
    first = held.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    second = held.delay(key, key)

    assert is_duplicate(second, first)
    assert [note["decision"] for note in told(ledger, second)] == ["wait", "wait", "skip"]
    ledger.open_gate(key)


@prefork
def test_so_many_run_at_once_and_no_more(stage, ledger, key):
    held = variant(stage.app, "three").held
    results = [held.delay(key, key) for _ in range(3)]
    ledger.wait_for(3, key, ended=False)

    fourth = held.delay(key, key)

    with pytest.raises(TaskRevokedError, match="duplicate of") as caught:
        fourth.get(timeout=20)
    assert any(result.id in str(caught.value) for result in results)
    ledger.open_gate(key)
    assert [result.get(timeout=20) for result in results] == [key] * 3
    assert ledger.peak(key) == 3
    assert held.delay(key, key).get(timeout=20) == key


@prefork
def test_tasks_of_one_scope_share_their_lock(stage, ledger, key):
    one, two = variant(stage.app, "one"), variant(stage.app, "two")
    first = bring_to("running", stage, one, key)

    second = two.quick.delay(key)
    stranger = stage.stranger.app.send_task("two.quick", [key])

    assert duplicate_of(second).task_id == first.id
    assert duplicate_of(second).task == "two.quick"
    assert is_duplicate(stranger, first)
    assert duplicate_of(put_aside(two.quick, (f"{key} another",))) is None
    ledger.open_gate(key)


def call(*args, **kwargs):
    return args, kwargs


ORDER = {"account": {"id": 7}, "tags": ["a", "b"], "note": "x"}
# For each rule: a call, those that are equal to it, those that are not.
KEYS = {
    "all": [
        (
            call("k", 1),
            [call("k", value=1), call(value=1, key="k")],
            [call("k", 2), call("k"), call("k", "1")],
        ),
        (call("m"), [call("m", None), call("m", value=None)], [call("m", 0)]),
    ],
    "nothing": [(call("k", 1), [call("other", 2)], [])],
    "names": [(call("k", 1), [call("k", 2), call(key="k")], [call("K", 1)])],
    "template": [
        (
            call("k", ORDER),
            [call("k", {**ORDER, "note": "y", "tags": ["a"]})],
            [call("k", {**ORDER, "account": {"id": "7"}}), call("k", {**ORDER, "tags": ["b", "a"]})],
        )
    ],
    "dotted": [(call("k", 1), [call("K", 2), call(key="k")], [call("l", 1)])],
}


@prefork
@pytest.mark.parametrize("name", KEYS)
def test_which_calls_are_equal(stage, ledger, name):
    """The incumbent comes without a key, so its key is the worker's own, and the duplicates' the caller's."""
    gated = stage.app.app.tasks[f"{name}.gated"]
    for (args, kwargs), equal, different in KEYS[name]:
        first = stage.stranger.app.send_task(gated.name, args, kwargs)
        ledger.wait_for(1, first.id, ended=False)

        for again in equal:
            assert duplicate_of(put_aside(gated, *again)).task_id == first.id, f"{again} is equal"
        for other in different:
            assert duplicate_of(put_aside(gated, *other)) is None, f"{other} is another call"
        ledger.open_gate(first.id)
        assert first.get(timeout=20) == first.id


@prefork
def test_no_equal_call_queued_twice_and_one_run_an_account(stage, ledger, key):
    held = variant(stage.app, "both").held
    first = held.delay(key, f"{key} 1")
    ledger.wait_for(1, key, ended=False)

    second, third = held.delay(key, f"{key} 2"), held.delay(key, f"{key} 3")
    again = held.delay(key, f"{key} 2")

    assert duplicate_of(again).task_id == second.id, "the call is queued already, if only to wait"
    assert duplicate_of(third) is None, "it is another call of the account"
    for result in (second, third):
        assert told(ledger, result)[0]["decision"] == "wait"
    assert duplicate_of(held.delay(key, f"{key} 2")).task_id == second.id, "nor while it waits"
    assert duplicate_of(put_aside(held, (key, f"{key} 1"))) is None, "what has started may be queued again"
    for number in (1, 2, 3):
        ledger.open_gate(f"{key} {number}")
    assert [result.get(timeout=20) for result in (first, second, third)] == [key] * 3
    assert ledger.overlaps(key) == []
    assert sorted(ledger.ids(key)) == sorted([first.id, second.id, third.id])


@prefork
@pytest.mark.parametrize("name", ["own.held", "own.shared"])
def test_a_task_may_bring_its_own(stage, ledger, key, name):
    task = stage.app.app.tasks[name]
    first = task.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    second, third = task.delay(key, key), task.delay(key, key)

    assert duplicate_of(second) is duplicate_of(third) is None, "not the rule's until_started"
    assert is_duplicate(second, first)
    assert is_duplicate(third, first)
    ledger.open_gate(key)
    assert first.get(timeout=20) == key


@prefork
def test_a_task_may_be_left_alone(stage, ledger, key):
    free = stage.app.app.tasks["own.free"]

    results = [free.delay(key, key) for _ in range(3)]

    ledger.wait_for(3, key, ended=False)
    ledger.open_gate(key)
    assert [result.get(timeout=20) for result in results] == [key] * 3


@prefork
@pytest.mark.parametrize("set_on", ["call", "signature"])
def test_a_call_may_be_left_alone(stage, ledger, key, set_on):
    held = variant(stage.app, "once").held
    first = held.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    if set_on == "call":
        second = held.apply_async((key, key), dedupe=False)
    else:
        second = held.s(key, key).set(dedupe=False).delay()

    ledger.wait_for(2, key, ended=False)
    ledger.open_gate(key)
    assert duplicate_of(second) is None
    assert [first.get(timeout=20), second.get(timeout=20)] == [key, key]
    assert duplicate_of(held.delay(key, key)).task_id == first.id, "the mark is the first one's still"


@prefork
@pytest.mark.parametrize("set_on", ["call", "signature", "name"])
def test_a_call_may_bring_its_own(stage, ledger, key, set_on):
    held = variant(stage.app, "skips").held
    own = {"key": f"same for all, {key}", "on_conflict": "raise"}

    def call(letter):
        args = (f"{key} {letter}", key)
        if set_on == "call":
            return held.apply_async(args, dedupe=own)
        if set_on == "signature":
            return held.s(*args).set(dedupe=own).apply_async()
        return stage.app.app.send_task(held.name, args, dedupe=own)

    first = call("a")
    ledger.wait_for(1, f"{key} a", ended=False)
    second = call("b")

    with pytest.raises(DuplicateTask) as caught:
        second.get(timeout=20)
    assert caught.value.task_id == first.id
    ledger.open_gate(key)
    assert first.get(timeout=20) == f"{key} a"
    assert ledger.runs(f"{key} b") == []


@prefork
def test_an_entry_of_beat_may_bring_its_own(stage, ledger):
    beat = stage.workers.beat(stage.app)

    first = ledger.wait_for(1, "bound by its entry", ended=False)[0]
    ledger.wait_for(2, "freed by its entry", ended=False)
    wait_until(lambda: len([note for note in ledger.notes("dropped") if note["task"] == "skips.held"]) >= 2)
    beat.kill()

    ledger.open_gate("beat")
    assert ledger.peak("freed by its entry") >= 2
    assert ledger.ids("bound by its entry") == [first.task_id]
    assert "Traceback" not in beat.log


def test_a_worker_has_kept_nothing(stage):
    """After all the tests before it on this worker: no slot, and no claim but of what nobody took."""

    def running() -> list[Any]:
        return [record for _, record in stage.app.dedupe.guard.store.scan("dedupe:*") if record.running]

    wait_until(lambda: not running(), 20, lambda: f"{running()}")
