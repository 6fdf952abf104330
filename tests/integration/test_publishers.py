"""Everything that publishes, on real workers: retries, programs by name, beat, apps, modes, long queues."""

from __future__ import annotations

import functools
import json
import logging
import uuid
from datetime import timedelta

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError

from celery_dedupe import Dedupe, duplicate_of, signals
from celery_dedupe.core.locks import LOCKS
from tests.apps.stage import close, define_variants, on_stage, variant
from tests.conftest import WORKERS
from tests.contract.asks import free
from tests.harness.commands import count_commands
from tests.harness.servers import BROKER, STORE
from tests.harness.waiting import remains_true, wait_until

pytestmark = pytest.mark.integration

IDLE = "nobody takes from it yet"
RULES = {
    **{
        f"{lock}.*": {
            "lock": lock,
            "key": ["key"],
            "scope": lock,
            **({"period": "1h"} if traits.periodic else {}),
        }
        for lock, traits in LOCKS.items()
    },
    **{
        f"until_finished.{name}": {
            "lock": "until_finished",
            "key": ["key"],
            "scope": "until_finished",
            "params": ["key"],
        }
        for name in ("held", "quick")
    },
    "brief.*": {"lock": "until_finished", "key": ["key"], "queue_ttl": "1s"},
    "signed.*": {"lock": "until_finished", "scope": "signed"},
    "purged.*": {"lock": "until_finished", "key": ["key"]},
    "every.*": {"lock": "until_finished", "key": ["key"], "on_duplicate": "existing"},
    "silent.*": {"lock": "until_finished", "key": ["key"], "on_duplicate": "none"},
}


def note_all(under_test):
    """Notes every event under the name of its signal, with the task's id as key."""
    named = {
        "dropped": signals.publish_dropped,
        "refused": signals.run_refused,
        "unprotected": signals.ran_unprotected,
        "taken": signals.lock_taken,
    }
    for name, signal in named.items():

        def note(app, event, name=name):
            decision = getattr(event, "decision", None)
            observed = getattr(event, "observed", None)
            under_test.ledger.note(name, event.task_id, task=event.task, decision=decision, observed=observed)

        signal.connect(note, sender=under_test.app, weak=False)


def wrapped_as_sentry_does(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def define(under_test):
    app, ledger = under_test.app, under_test.ledger
    define_variants(under_test, [*LOCKS, "brief", "every", "silent", "purged"])
    note_all(under_test)

    def plain(key, value=None):
        with ledger.run("signed", key, app.current_task.request.id):
            ledger.wait_gate(key)

    def bound(self, key, value=None):
        return plain(key, value)

    app.task(plain, shared=False, name="signed.plain")
    app.task(bound, shared=False, name="signed.bound", bind=True)
    app.task(bound, shared=False, name="signed.retried", bind=True, autoretry_for=(Exception,))
    app.task(wrapped_as_sentry_does(plain), shared=False, name="signed.wrapped")

    other = Celery("other", set_as_current=False, broker=app.conf.broker_url)
    other.conf.update(
        task_default_queue=IDLE,
        result_backend=app.conf.result_backend,
        dedupe_url=app.conf.dedupe_url,
        dedupe_prefix="other",
        dedupe_rules={"jobs.*": "queue_and_run"},
    )
    Dedupe(other).init_app()

    @app.task(bind=True, shared=False, name="until_finished.tells_other_app")
    def tells_other_app(self, key):
        """Publishes its own name and call on another app; says what it has got of both."""
        with ledger.run(self.name, key, self.request.id):
            found = [duplicate_of(other.send_task("jobs.tells", [key])) for _ in range(2)]
            return [one and [one.task_id, one.key] for one in found]


@pytest.fixture(scope="module")
def stage(reaper, tmp_path_factory):
    """An app with the rules, ``.app``, the same one without the extension, ``.stranger``, and a worker."""
    with on_stage(reaper, tmp_path_factory.mktemp("publishers")) as stage:
        stage.app = stage.make_app(RULES, setup=define)
        stage.stranger = stage.without_extension(stage.app)
        stage.worker = stage.workers(stage.app, concurrency=6)
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


def parts(app, task_id):
    """What the store holds for a task: names of states."""
    records = [record for _, record in app.dedupe.guard.store.scan("*")]
    held = [("queued", part) for record in records for part in record.queued]
    held += [("running", part) for record in records for part in record.running]
    return [state for state, part in held if part.task_id == task_id]


def put_aside(task, *args, **options):
    """Publishes to a queue from which nobody takes."""
    return task.apply_async(args, queue=IDLE, **options)


def is_skipped(result, first):
    with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
        result.get(timeout=20)
    return result.state == "REVOKED"


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("how", ["retries", "autoretries"])
def test_a_retry_is_no_duplicate_of_itself(stage, ledger, key, lock, how):
    """Case 23: three attempts run, and nothing is left of them but what a success leaves."""
    first = getattr(variant(stage.app, lock), how).delay(key, 2)

    assert first.get(timeout=20) == key
    assert [run.attempt for run in ledger.runs(key)] == [0, 1, 2]
    assert set(ledger.ids(key)) == {first.id}
    if LOCKS[lock].runs:
        assert ledger.overlaps(key) == []
    left = ["queued"] if lock == "until_expired" else []
    wait_until(lambda: parts(stage.app, first.id) == left, 10)
    assert (duplicate_of(put_aside(variant(stage.app, lock).quick, key)) is None) is (
        lock not in ("until_expired", "once")
    )


@pytest.mark.parametrize("lock", [name for name in LOCKS if name != "while_running"])
def test_while_a_task_waits_for_its_retry_its_call_is_a_duplicate(stage, ledger, key, lock):
    """Case 25."""
    tasks = variant(stage.app, lock)
    first = tasks.retries.delay(key, 1, 4)
    wait_until(lambda: first.state == "RETRY" and "running" not in parts(stage.app, first.id), 10)

    found = [duplicate_of(tasks.quick.delay(key)) for _ in range(3)]

    assert len(ledger.runs(key)) == 1, "the retry had not come yet"
    assert {(one.task_id, one.state) for one in found} == {(first.id, "queued")}
    assert first.get(timeout=20) == key
    assert ledger.ids(key) == [first.id, first.id]


@pytest.fixture
def by_name(stage):
    """An app that has the rules and none of the tasks, as another service would."""
    app = Celery("by name", set_as_current=False, broker=stage.app.app.conf.broker_url)
    app.conf.update(
        task_default_queue=stage.app.queue,
        result_backend=stage.app.app.conf.result_backend,
        dedupe_url=stage.app.app.conf.dedupe_url,
        dedupe_rules=RULES,
    )
    Dedupe(app).init_app()
    yield app
    close(app)


def test_a_program_that_publishes_by_name_makes_the_same_keys(stage, ledger, key, by_name):
    """Case 33."""
    name = "until_finished.held"
    task = stage.app.app.tasks[name]
    first = by_name.send_task(name, [key], {"gate": key})
    ledger.wait_for(1, key, ended=False)

    assert duplicate_of(task.delay(key, key)).task_id == first.id
    assert duplicate_of(task.delay(gate=key, key=key)).task_id == first.id
    assert duplicate_of(by_name.send_task(name, kwargs={"key": key})).task_id == first.id
    assert is_skipped(stage.stranger.app.send_task(name, [key, key]), first)
    ledger.open_gate(key)
    assert first.get(timeout=20) == key

    second = put_aside(task, f"{key} 2")
    found = duplicate_of(by_name.send_task(name, [f"{key} 2"]))
    assert found.task_id == second.id
    assert duplicate_of(by_name.send_task(name, [f"{key} 3"], queue=IDLE)) is None


def test_beat_is_not_disturbed_by_the_duplicates_it_publishes(stage, ledger):
    """Case 35: entries of 1 s over tasks that take longer."""
    entries = ("every", "silent")
    schedule = {
        name: {"task": f"{name}.held", "schedule": 1, "args": [f"beat {name}", f"beat {name}"]}
        for name in entries
    }
    app = stage.without_extension(stage.app)
    app.env |= {"DEDUPE_INSTALL": "1", "DEDUPE_CONF": json.dumps({"beat_schedule": schedule})}

    beat = stage.workers.beat(app)

    def dropped(name):
        return [note for note in ledger.notes("dropped") if note["task"] == f"{name}.held"]

    for name in entries:
        ledger.wait_for(1, f"beat {name}", ended=False)
        wait_until(lambda name=name: len(dropped(name)) >= 3, 30)
        assert len(ledger.runs(f"beat {name}")) == 1
        ledger.open_gate(f"beat {name}")
        ledger.wait_for(3, f"beat {name}")
        assert ledger.overlaps(f"beat {name}") == []
    beat.kill()
    assert beat.log.count("Sending due task") >= 10
    assert "is queued and holds" in beat.log or "is running and holds" in beat.log
    for trouble in ("Traceback", "ERROR", "CRITICAL"):
        assert trouble not in beat.log


def test_two_apps_in_one_process_do_not_meet(stage, ledger, key):
    here, there = stage.app, stage.make_app({"jobs.*": "until_started"}, prefix="there", setup=note_all)
    tasks = variant(here, "until_finished")
    first = put_aside(tasks.quick, key)

    results = [put_aside(there.tasks.quick, key) for _ in range(2)]

    assert duplicate_of(results[0]) is None
    assert duplicate_of(results[1]).task_id == results[0].id
    assert duplicate_of(results[1]).key.startswith("there:jobs.quick:")
    assert duplicate_of(put_aside(tasks.quick, key)).task_id == first.id
    assert [note["task"] for note in ledger.notes("dropped", results[1].id)] == []
    assert len(ledger.notes("taken", results[0].id)) == 1, "told by its own app, once"


def test_a_task_that_publishes_on_another_app_meets_that_apps_rules(stage, key):
    """The worker's process has two apps, each with the extension."""
    first = stage.app.app.tasks["until_finished.tells_other_app"].delay(key)

    accepted, refused = first.get(timeout=20)

    assert accepted is None
    assert refused[0] != first.id
    assert refused[1].startswith("other:jobs.tells:")


def test_an_eager_call_takes_no_lock_and_is_none(stage, ledger, key):
    tasks = variant(stage.app, "once")
    first = put_aside(tasks.quick, key)

    results = [tasks.quick.apply((key,)), tasks.quick(key), tasks.quick.apply((key,))]

    assert [result if result == key else result.get() for result in results] == [key] * 3
    assert len(ledger.runs(key)) == 3
    assert duplicate_of(put_aside(tasks.quick, key)).task_id == first.id, "they freed nothing either"
    stage.app.app.conf.task_always_eager = True
    try:
        assert tasks.quick.delay(key).get() == key
    finally:
        stage.app.app.conf.task_always_eager = False
    assert len(ledger.runs(key)) == 4


def test_messages_without_the_extension_run_under_the_running_lock(stage, ledger, key):
    """Case 34: nobody claimed for them, and still one runs at a time, and all run."""
    strangers = variant(stage.stranger, "queue_and_run")

    results = [strangers.slow.delay(key, 0.3) for _ in range(3)]

    assert [result.get(timeout=30) for result in results] == [key] * 3
    assert sorted(ledger.ids(key)) == sorted(result.id for result in results)
    assert ledger.overlaps(key) == []
    for result in results:
        wait_until(lambda result=result: parts(stage.app, result.id) == [])


def test_observing_reports_all_and_refuses_nothing(stage, ledger, key, caplog):
    caplog.set_level(logging.INFO, "celery_dedupe")
    app = stage.make_app(RULES, setup=define, mode="observe", prefix="observed")
    worker = stage.workers(app, concurrency=2)
    results = {}
    for lock in LOCKS:
        held = variant(app, lock).held
        of_lock = f"{key} {lock}"
        results[lock] = [held.delay(of_lock, of_lock) for _ in range(2)]
        ledger.wait_for(2, of_lock, ended=False)
        ledger.open_gate(of_lock)
        assert [result.get(timeout=20) for result in results[lock]] == [of_lock] * 2
        assert [duplicate_of(result) for result in results[lock]] == [None, None]
        assert {run.task_id for run in ledger.runs(of_lock)} == {result.id for result in results[lock]}
        assert ledger.peak(of_lock) == 2, "nothing was delayed"
    worker.stop()

    for lock, traits in LOCKS.items():
        ids = [result.id for result in results[lock]]
        refused = [note for task_id in ids for note in ledger.notes("refused", task_id)]
        assert len(refused) == (1 if traits.runs else 0)
        assert all(note["observed"] for note in refused)
        assert [note["decision"] for note in refused] == ([traits.on_conflict] if traits.runs else [])
        dropped = ledger.notes("dropped", ids[1])
        assert all(note["observed"] for note in dropped)
        if lock in ("until_finished", "until_expired", "once"):
            assert len(dropped) == 1
            assert f"{lock}.held[{ids[1]}] published all the same: duplicate" in caplog.text
        if traits.runs:
            assert f"would {traits.on_conflict}" in worker.log


def test_mode_off_does_nothing(stage, ledger, key):
    app = stage.make_app({"jobs.*": "once"}, mode="off", url="redis://localhost:1/0")
    worker = stage.workers(app, concurrency=2)

    results = [app.tasks.held.delay(key, key) for _ in range(2)]

    ledger.wait_for(2, key, ended=False)
    aside = put_aside(app.tasks.held, key)
    messages = [json.loads(text) for text in stage.server.client(BROKER).lrange(IDLE, 0, -1)]
    (mine,) = [message for message in messages if message["headers"]["id"] == aside.id]
    assert "dedupe" not in mine["headers"]
    ledger.open_gate(key)
    assert [result.get(timeout=20) for result in results] == [key] * 2
    worker.stop()
    assert "celery-dedupe" not in worker.log


@pytest.mark.parametrize("by", ["id", "stamp"])
def test_a_revoked_task_is_nobodys_duplicate(stage, ledger, key, by):
    """Case 3, and its own time would have come in ten minutes."""
    quick = variant(stage.app, "until_finished").quick
    signature = quick.s(key).set(countdown=600)
    signature.stamp(batch=key)
    first = signature.apply_async()
    stage.worker.wait_for_log(f"quick[{first.id}] received")
    assert duplicate_of(quick.delay(key)).task_id == first.id

    if by == "id":
        first.revoke()
    else:
        stage.app.app.control.revoke_by_stamped_headers({"batch": [key]})

    def accepted():
        again = quick.delay(key)
        return None if duplicate_of(again) else again

    second = wait_until(accepted, 20)
    assert second.get(timeout=20) == key
    assert ledger.ids(key) == [second.id]
    assert quick.delay(key).get(timeout=20) == key


def test_a_claim_does_not_outlive_its_message(stage, key):
    """Case 4: the message expires in a queue that nobody gets to."""
    quick = variant(stage.app, "until_finished").quick
    first = put_aside(quick, key, expires=2)

    found = duplicate_of(put_aside(quick, key))

    assert found.task_id == first.id
    assert found.expires_in <= 2
    wait_until(lambda: duplicate_of(put_aside(quick, key)) is None, 10)


def take_from(stage, queue):
    """Has the worker take from one more queue."""
    stage.app.app.control.add_consumer(queue, reply=True, limit=1)


def test_a_task_whose_claim_has_run_out_runs(stage, ledger, key):
    """Case 32: and so does the one that was accepted meanwhile, after or in place of it."""
    held = variant(stage.app, "brief").held
    queue = f"backed up {key}"
    first = held.apply_async((key, key), queue=queue)
    assert duplicate_of(held.apply_async((key, key), queue=queue)).task_id == first.id
    wait_until(lambda: parts(stage.app, first.id) == [], 10)

    take_from(stage, queue)

    ledger.wait_for(1, key, ended=False)
    assert parts(stage.app, first.id) == ["running"]
    assert duplicate_of(held.delay(key, key)).task_id == first.id, "it runs under its lock"
    ledger.open_gate(key)
    assert first.get(timeout=20) == key
    assert ledger.ids(key) == [first.id]


@pytest.mark.parametrize("how", ["countdown", "eta"])
def test_a_claim_lasts_to_the_eta(stage, ledger, key, how):
    """A countdown longer than ``queue_ttl``, which is 1 s here."""
    quick = variant(stage.app, "brief").quick
    later = {"countdown": 4}
    if how == "eta":
        later = {"eta": stage.app.app.now() + timedelta(seconds=4)}
    first = quick.apply_async((key,), **later)

    def refused():
        found = duplicate_of(quick.delay(key))
        return (found is not None and found.task_id == first.id) or ledger.runs(key)

    assert duplicate_of(quick.delay(key)).expires_in > 3
    remains_true(refused, 3)
    assert first.get(timeout=20) == key
    assert ledger.ids(key) == [first.id]


def test_one_more_run_follows_a_change_made_during_a_run(stage, ledger, key):
    """Case 59."""
    held = variant(stage.app, "queue_and_run").held
    first = held.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    following = held.delay(key, key)
    others = [held.delay(key, key) for _ in range(5)]

    assert duplicate_of(following) is None
    assert {duplicate_of(result).task_id for result in others} == {following.id}
    ledger.open_gate(key)
    assert first.get(timeout=20) == following.get(timeout=20) == key
    assert [result.get(timeout=20) for result in others] == [key] * 5
    earlier, later = ledger.runs(key)
    assert (earlier.task_id, later.task_id) == (first.id, following.id)
    assert earlier.ended < later.started


@pytest.mark.parametrize("name", ["plain", "bound", "retried", "wrapped"])
def test_how_a_task_is_wrapped_does_not_change_its_keys(stage, ledger, key, name):
    """Case 43: ``bind=True``, ``autoretry_for`` and wrappers such as Sentry's; here and in the worker."""
    tasks = variant(stage.app, "signed")
    stranger = getattr(variant(stage.stranger, "signed"), name)
    first = stranger.delay(key)
    ledger.wait_for(1, key, ended=False)

    results = [task.delay(key, value=None) for task in vars(tasks).values()]

    assert {duplicate_of(result).task_id for result in results} == {first.id}
    ledger.open_gate(key)
    first.get(timeout=20)


def test_what_a_purge_left_claimed_is_freed_in_bulk(stage, ledger, key):
    """Case 7: by the task's glob, and what runs keeps its lock."""
    tasks = variant(stage.app, "purged")
    running = tasks.held.delay(key, key)
    ledger.wait_for(1, key, ended=False)
    queue = f"purged {key}"
    for number in range(300):
        tasks.quick.apply_async((f"{key} {number}",), queue=queue)
    other = put_aside(variant(stage.app, "until_finished").quick, key)
    with stage.app.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) == 300
    assert duplicate_of(tasks.quick.delay(f"{key} 0")) is not None

    store = stage.app.dedupe.guard.store
    freed = free(store, [name for name, _ in store.scan("dedupe:purged*")], ("queued",))

    assert freed == 300
    results = [tasks.quick.delay(f"{key} {number}") for number in (0, 7, 299)]
    assert [duplicate_of(result) for result in results] == [None] * 3
    assert duplicate_of(tasks.held.delay(key, key)).task_id == running.id
    assert duplicate_of(put_aside(variant(stage.app, "until_finished").quick, key)).task_id == other.id
    ledger.open_gate(key)
    assert running.get(timeout=20) == key


def test_whoever_comes_and_goes_frees_nothing_and_scans_nothing(stage, ledger, key):
    """Case 16: who is alive is told by leases alone, not guessed from queues and keys."""
    held = variant(stage.app, "until_finished").held
    with count_commands(stage.server) as seen:
        first = held.delay(key, key)
        ledger.wait_for(1, key, ended=False)
        waiting = put_aside(held, f"{key} waiting", key)

        stage.workers(stage.app, concurrency=1).stop()

        assert duplicate_of(held.delay(key, key)).task_id == first.id
        assert duplicate_of(put_aside(held, f"{key} waiting", key)).task_id == waiting.id
        ledger.open_gate(key)
        assert first.get(timeout=20) == key

    asked = set(seen.names(db=STORE))
    assert {"EVALSHA", "INFO"} <= asked <= {"EVALSHA", "EVAL", "INFO", "DBSIZE", "TIME", "PING"}
    assert not {"KEYS", "SCAN", "LRANGE"} & set(seen.names())


def test_what_a_person_sees_of_a_duplicate(stage, ledger, key, caplog):
    """Case 58: a line, an event and ``duplicate_of``, at a publish and at a start."""
    caplog.set_level(logging.INFO, "celery_dedupe")
    events = []

    @signals.publish_dropped.connect_via(stage.app.app)
    def keep(app, event):
        events.append(event)

    held = variant(stage.app, "until_finished").held
    first = held.delay(key, key)
    ledger.wait_for(1, key, ended=False)

    found = duplicate_of(held.delay(key, key))
    late = stage.stranger.app.send_task(held.name, [key, key])

    assert (found.task_id, found.task, found.state) == (first.id, held.name, "running")
    assert 0 < found.expires_in <= 60
    assert stage.server.client(STORE).exists(found.key)
    (event,) = events
    assert (event.task, event.lock, event.observed) == (held.name, "until_finished", False)
    assert event.duplicate == found
    (line,) = [record.getMessage() for record in caplog.records if event.task_id in record.getMessage()]
    for part in (held.name, found.key, first.id, "running", f"{found.expires_in:.1f} s"):
        assert part in line
    assert is_skipped(late, first)
    (line,) = [line for line in stage.worker.log.splitlines() if f"{late.id}] skip" in line]
    assert "INFO" in line
    for part in (held.name, found.key, first.id, "running", "holds"):
        assert part in line
    (note,) = ledger.notes("refused", late.id)
    assert note["decision"] == "skip"
    ledger.open_gate(key)
