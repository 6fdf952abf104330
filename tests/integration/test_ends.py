"""The release matrix: whatever way a task ends, its call is accepted again, and nothing was lost or doubled.

For each pool and broker all ends of all locks run in one worker at once. What was wrong is collected by cell,
``(lock, end)``, and asserted lock by lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery import Task
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from kombu.serialization import registry

from celery_dedupe import duplicate_of
from celery_dedupe.core.locks import LOCKS
from tests.apps.assembly import AppUnderTest, variables
from tests.apps.locks import call, define_by_lock, rules
from tests.conftest import WORKERS
from tests.contract.asks import free
from tests.harness.ledger import Ledger, Run
from tests.harness.servers import ValkeyServer, require_service
from tests.harness.waiting import wait_until
from tests.harness.workers import WorkerProcess, Workers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# A claim lives for an hour and a lease for a minute: what is free within AT_ONCE is so by a word of Celery.
# Where there is none, only the end of the lease or claim can free a lock; it is SHORT for those tasks.
AT_ONCE, BY_TIME, SHORT = 15, 30, 2
LEFT_TO_TIME = {"held": "lease", "late_kill_self": "lease", "replaces": "queue_ttl"}

Cell = tuple[str, str]  # a lock, and the name of an end


@dataclass(frozen=True)
class End:
    """One way to end.

    Attributes:
        task, args, options: what is called; the key of the cell comes before ``args``.
        outcomes: how its bodies leave, as the ledger tells it; ``None`` is a body that was killed.
        state: of the result at the end; ``None`` where Celery stores none.
        taken: the locks that such an end leaves taken.
        within: seconds in which all other locks are free.
        prefork: the end needs processes.
    """

    name: str
    task: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    outcomes: tuple[str | None, ...] = ()
    state: str | None = None
    taken: tuple[str, ...] = ()
    within: float = AT_ONCE
    prefork: bool = False


WELL = ("until_expired", "once")
SOFT_LIMIT = "SoftTimeLimitExceeded"
HOLD = {"countdown": 4}
ENDS = [
    End("success", "quick", outcomes=("ok",), state="SUCCESS", taken=WELL),
    End("failure", "fails", outcomes=("ValueError",), state="FAILURE"),
    End("unpicklable exception", "fails_unpicklably", outcomes=("Unpicklable",), state="FAILURE"),
    End("Ignore", "ignores", outcomes=("Ignore",), taken=("until_expired",)),
    End("Reject", "rejects", (1, False), outcomes=("Reject",)),
    End("Reject(requeue=True)", "rejects", outcomes=("Reject", "ok"), state="SUCCESS", taken=WELL),
    End("retry", "retries", (1, 6), outcomes=("Retry", "ok"), state="SUCCESS", taken=WELL),
    End("autoretry", "autoretries", outcomes=("Flaky", "ok"), state="SUCCESS", taken=WELL),
    End(
        "retries used up", "retries", (9, 0.5), outcomes=("Retry", "Retry", "Retry", "Flaky"), state="FAILURE"
    ),
    End("revoked before start", "quick", options=HOLD, state="REVOKED"),
    End("revoked by stamp", "quick", options=HOLD, state="REVOKED"),
    End("expired before start", "quick", options={"countdown": 2, "expires": 1}, state="REVOKED"),
    End("terminated", "slow", (60,), outcomes=(None,), state="REVOKED", prefork=True),
    End("terminated, late ack", "late_slow", (60,), outcomes=(None,), state="REVOKED", prefork=True),
    End("hard limit", "slow", (60,), {"time_limit": 1}, (None,), "FAILURE", prefork=True),
    End("hard limit, late ack", "late_slow", (60,), {"time_limit": 1}, (None,), "FAILURE", prefork=True),
    End("hard limit in C", "hang", (), {"time_limit": 1}, (None,), "FAILURE", prefork=True),
    End("soft limit", "slow", (60,), {"soft_time_limit": 1}, (SOFT_LIMIT,), "FAILURE", prefork=True),
    End("child killed", "kill_self", outcomes=(None,), state="FAILURE", prefork=True),
    End("child killed, late ack", "late_kill_self", (), {}, (None, "ok"), "SUCCESS", WELL, prefork=True),
    End("unregistered", "unheard_of", state="FAILURE", prefork=True),
    End("refused content", "quick", options={"serializer": "pickle"}, prefork=True),
    End(
        "undecodable body",
        "replaces",
        ("jobs.quick", []),
        {"serializer": "mangled"},
        taken=("until_expired",),
        within=BY_TIME,
        prefork=True,
    ),
]
WORKER_KILLED = End(
    "worker killed", "held", ("never",), taken=("until_expired",), within=BY_TIME, prefork=True
)


def rules_of_the_matrix() -> dict[str, Any]:
    found = rules()
    for lock, traits in LOCKS.items():
        policy = found[f"{lock}.*"]
        found[f"{lock}.unheard_of"] = {**policy, "params": ["key"]}
        for name, term in LEFT_TO_TIME.items():
            if traits.runs if term == "lease" else traits.claims and not traits.periodic:
                found[f"{lock}.{name}"] = {**policy, term: SHORT}
    return found


class Matrix:
    """One worker, all locks, all ends.

    Attributes:
        problems: what was wrong, by cell.
    """

    def __init__(self, under_test: AppUnderTest, start: Callable[[], Any], pool: str) -> None:
        self.under_test, self.app, self.ledger = under_test, under_test.app, under_test.ledger
        self.start, self.pool = start, pool
        self.ends = {end.name: end for end in ENDS if pool == "prefork" or not end.prefork}
        self.first: dict[Cell, AsyncResult[Any]] = {}
        self.second: dict[Cell, AsyncResult[Any]] = {}
        self.problems: dict[Cell, str] = {}

    def run(self) -> None:
        """Walks through all ends, each stage for all locks at once."""
        worker = self.start()
        self.revoke()
        if self.pool == "prefork":
            self.terminate()
        self.publish(end for end in self.ends.values() if ("once", end.name) not in self.first)
        self.hold_through_the_retry()
        self.see_ends(self.ends.values())
        self.see_free(self.ends.values())
        if self.pool == "prefork":
            self.kill(worker)
        self.see_nothing_left()

    def kill(self, worker: WorkerProcess) -> None:
        self.publish([WORKER_KILLED])
        for cell in self.cells(WORKER_KILLED):
            self.ledger.wait_for(1, self.key(cell), ended=False)
        worker.kill()
        self.start()
        self.see_free([WORKER_KILLED])

    def cells(self, end: End) -> list[Cell]:
        return [(lock, end.name) for lock in LOCKS]

    def key(self, cell: Cell) -> str:
        return " ".join(cell)

    def publish(self, ends: Iterable[End]) -> None:
        for end in list(ends):
            for lock, name in self.cells(end):
                self.first[lock, name] = self.call((lock, name), end.task, *end.args, **end.options)

    def call(self, cell: Cell, task: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        return call(self.app, cell[0], task, self.key(cell), *args, **options)

    def revoke(self) -> None:
        """By id and by stamp, while the worker holds them back for their countdown."""
        by_id, by_stamp = self.ends["revoked before start"], self.ends["revoked by stamp"]
        self.publish([by_id])
        ids = [self.first[cell].id for cell in self.cells(by_id)]
        self.app.control.revoke(ids, reply=True, timeout=10, limit=1)
        for cell in self.cells(by_stamp):
            task = self.app.tasks[f"{cell[0]}.{by_stamp.task}"]
            signature = task.s(self.key(cell)).set(**by_stamp.options)
            signature.stamp(batch=self.app.main)
            self.first[cell] = signature.apply_async()
        self.app.control.revoke_by_stamped_headers(
            {"batch": [self.app.main]}, reply=True, timeout=10, limit=1
        )

    def terminate(self) -> None:
        """While they run."""
        ends = [self.ends["terminated"], self.ends["terminated, late ack"]]
        self.publish(ends)
        cells = [cell for end in ends for cell in self.cells(end)]
        for cell in cells:
            self.ledger.wait_for(1, self.key(cell), ended=False)
        self.app.control.revoke([self.first[cell].id for cell in cells], terminate=True)

    def hold_through_the_retry(self) -> None:
        """Between its attempts a task is queued, and its call is a duplicate of it."""
        for cell in self.cells(self.ends["retry"]):
            if LOCKS[cell[0]].claims and not self.refused_until_the_retry(cell):
                self.problems[cell] = "its lock was free between its attempts"

    def refused_until_the_retry(self, cell: Cell) -> bool:
        first = self.first[cell].id
        waits = wait_until(lambda: self.queued(cell, first) or len(self.ledger.runs(self.key(cell))) > 1)
        found = duplicate_of(self.call(cell, "quick"))
        return waits is True and (found is not None or len(self.ledger.runs(self.key(cell))) > 1)

    def queued(self, cell: Cell, task_id: str) -> bool:
        records = self.store.scan(f"dedupe:{cell[0]}:*")
        return any(part.task_id == task_id for _, record in records for part in record.queued)

    def see_ends(self, ends: Iterable[End]) -> None:
        """Each end looks as it should, and nothing but what it says has run."""
        awaited = {cell: (end.outcomes, end.state) for end in ends for cell in self.cells(end)}

        def amiss() -> dict[Cell, str]:
            runs = self.ledger.runs()
            found = {cell: self.seen(cell, runs, awaited[cell][1] is not None) for cell in awaited}
            for cell in [cell for cell in awaited if found[cell] == awaited[cell]]:
                del awaited[cell], found[cell]
            return {cell: f"ended as {found[cell]}, not {awaited[cell]}" for cell in awaited}

        self.problems |= waited_for_nothing(amiss, 2 * BY_TIME)

    def seen(self, cell: Cell, runs: list[Run], stored: bool) -> tuple[Any, Any]:
        first = self.first[cell]
        mine = [run for run in runs if run.task_id == first.id]
        # What kills a body may leave it the time to say so.
        outcomes = tuple(None if run.outcome == "SystemExit" else run.outcome for run in mine)
        return outcomes, first.state if stored else None

    def see_free(self, ends: Iterable[End]) -> None:
        """The lock is free for another run, or taken as it should be."""
        waiting = {}
        for end in ends:
            for cell in self.cells(end):
                if cell[0] not in end.taken:
                    waiting[cell] = end.within
                elif duplicate_of(self.call(cell, "quick")) is None:
                    self.problems[cell] = "its lock is free"
        for within in (AT_ONCE, BY_TIME):
            cells = {cell for cell in waiting if waiting[cell] == within}

            def amiss(cells: set[Cell] = cells) -> dict[Cell, str]:
                ran = set(self.ledger.ids())
                cells -= {cell for cell in cells if self.runs_again(cell, ran)}
                return {cell: f"its lock is not free: {self.records(cell)}" for cell in cells}

            self.problems |= waited_for_nothing(amiss, within)

    def runs_again(self, cell: Cell, ran: set[str]) -> bool:
        second = self.second.get(cell)
        if (
            second is None or second.state == "REVOKED"
        ):  # refused at its start, by a slot that is not free yet
            found = self.call(cell, "quick")
            if duplicate_of(found) is None:
                self.second[cell] = found
            return False
        return second.state == "SUCCESS" and second.id in ran

    def records(self, cell: Cell) -> list[Any]:
        return [record for key, record in self.store.scan(f"dedupe:{cell[0]}:*") if self.holds(record, cell)]

    def holds(self, record: Any, cell: Cell) -> bool:
        ids = {self.first[cell].id, self.second[cell].id if cell in self.second else ""}
        return any(part.task_id in ids for part in (*record.queued, *record.running))

    def see_nothing_left(self) -> None:
        """No body ran beside another of its key, and no lock is held for a task that has ended."""
        for run in self.ledger.overlaps():
            lock, _, name = run.key.partition(" ")
            self.problems[lock, name] = f"{run.task_id} ran beside another"
        for key, record in self.store.scan("dedupe:*"):
            lock = key.split(":")[1]
            if record.running or (record.queued and not LOCKS[lock].periodic):
                self.problems[lock, "at last"] = f"{record} is left"

    @property
    def store(self) -> Any:
        return self.under_test.dedupe.guard.store


def waited_for_nothing(amiss: Callable[[], dict[Cell, str]], timeout: float) -> dict[Cell, str]:
    """What is still amiss after so many seconds."""
    try:
        wait_until(lambda: not amiss(), timeout, interval=0.3)
    except TimeoutError:
        return amiss()
    return {}


@pytest.fixture(scope="module")
def mangled() -> Iterator[None]:
    """A serializer whose messages say that they are JSON and are not."""
    with pytest.MonkeyPatch.context() as patch:
        json = registry._encoders["json"]
        patch.setitem(registry._encoders, "mangled", json._replace(encoder=lambda value: "{broken"))
        yield


@pytest.fixture(
    scope="module",
    params=[
        "prefork-redis",
        pytest.param("prefork-rabbitmq", marks=pytest.mark.services),
        "threads-redis",
        "solo-redis",
        "gevent-redis",
        "eventlet-redis",
    ],
)
def matrix(
    request: pytest.FixtureRequest, reaper: Any, tmp_path_factory: pytest.TempPathFactory, mangled: None
) -> Iterator[Matrix]:
    pool, _, broker = request.param.partition("-")
    folder = tmp_path_factory.mktemp(request.param)
    server = ValkeyServer(reaper)
    server.start()
    env = variables(
        rules_of_the_matrix(),
        broker=require_service("rabbitmq") if broker == "rabbitmq" else server.broker_url,
        backend=server.backend_url,
        ledger=Ledger(folder / "ledger"),
        settings={"url": server.store_url},
        setup=define_by_lock,
    )
    under_test = AppUnderTest(env)
    workers = Workers(folder, reaper)
    found = Matrix(under_test, lambda: workers(under_test, pool=pool, concurrency=16), pool)
    try:
        found.run()
        found.workers = workers
        yield found
    finally:
        workers.end()
        for name, log in workers.logs():
            sys.stdout.write(f"log of {name}\n{log}\n")  # shown if this fails
        under_test.close()
        server.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lock", LOCKS)
def test_whatever_way_a_task_ends_its_lock_is_free_again(matrix, lock, request):
    request.node.stash[WORKERS] = matrix.workers

    assert {cell: what for cell, what in matrix.problems.items() if cell[0] == lock} == {}


class Publisher:
    """An app with every lock, on a broker that a test can cut off, and no worker."""

    def __init__(self, make_app: Any, broker: str, **terms: Any) -> None:
        at_once = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
        conf = {"broker_transport_options": at_once}
        self.under_test = make_app(rules(**terms), broker=broker, setup=define_by_lock, conf=conf)

    def publish(self, lock: str, **options: Any) -> AsyncResult[Any]:
        return call(self.under_test.app, lock, "quick", "a", retry=False, **options)

    def holders(self) -> dict[str, list[str]]:
        """Ids of the tasks with a queued claim, by lock."""
        records = self.under_test.dedupe.guard.store.scan("dedupe:*")
        return {key.split(":")[1]: [part.task_id for part in record.queued] for key, record in records}


CLAIMED = [lock for lock, traits in LOCKS.items() if traits.claims]


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.services)])
def test_a_broker_that_is_down_leaves_no_claim(make_app, valkey, start_proxy, kind, request):
    line = start_proxy(request.getfixturevalue("rabbitmq_url") if kind == "rabbitmq" else valkey.url(0))
    publisher = Publisher(make_app, line.url)

    line.refuse()
    for lock in LOCKS:
        with pytest.raises(OperationalError):
            publisher.publish(lock)
    assert publisher.holders() == {}

    line.restore()
    ids = {lock: publisher.publish(lock).id for lock in LOCKS}
    assert publisher.holders() == {lock: [ids[lock]] for lock in CLAIMED}


def test_a_publisher_killed_between_claim_and_message_holds_its_claim_for_its_time(make_app, valkey, workers):
    publisher = Publisher(make_app, valkey.url(0), period=SHORT)
    program = workers.python(
        publisher.under_test,
        """
        import os, signal, sys
        from celery.signals import before_task_publish
        from tests.apps.locks import call

        @before_task_publish.connect(weak=False)
        def die(**_):
            os.kill(os.getpid(), signal.SIGKILL)

        for lock in sys.argv[1:]:
            if os.fork() == 0:
                call(app, lock, "quick", "a", dedupe={"queue_ttl": 2} if lock != "until_expired" else None)
            os.wait()
        """,
        *CLAIMED,
    )
    assert program.output == ""
    dead = publisher.holders()
    assert list(map(len, dead.values())) == [1] * len(CLAIMED)

    for lock in CLAIMED:
        accepted = wait_until(
            lambda lock=lock: duplicate_of(result := publisher.publish(lock)) is None and result, BY_TIME
        )
        assert accepted.id not in dead[lock]


def test_after_a_purge_the_operator_frees_what_was_queued(make_app, valkey, workers, ledger):
    publisher = Publisher(make_app, valkey.url(0))
    app, store = publisher.under_test.app, publisher.under_test.dedupe.guard.store
    worker = workers(publisher.under_test, concurrency=1)
    running = call(app, "until_finished", "held", "b")
    ledger.wait_for(1, "b", ended=False)
    worker.pause()
    lost = {lock: publisher.publish(lock).id for lock in LOCKS}
    assert app.control.purge() >= len(LOCKS) - 1  # the worker may have one in its hands
    assert {lock: duplicate_of(publisher.publish(lock)).task_id for lock in CLAIMED} == {
        lock: lost[lock] for lock in CLAIMED
    }

    freed = free(store, [key for key, _ in store.scan("dedupe:*")], ("queued", "done"))

    assert freed == len(CLAIMED)
    assert duplicate_of(call(app, "until_finished", "held", "b")).task_id == running.id
    worker.resume()
    results = {lock: publisher.publish(lock) for lock in LOCKS}
    ledger.open_gate("gate")
    for lock, result in results.items():
        assert duplicate_of(result) is None
        assert result.get(timeout=20) == "a", lock
    assert running.get(timeout=10) == "b"


def define_deaths(under_test: AppUnderTest) -> None:
    """``once.dies``: its process is killed when its success is stored and its end is not told yet."""
    ledger = under_test.ledger

    class Dying(Task):  # type: ignore[type-arg]
        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            ledger.note("stored", args[0])
            ledger.wait_gate("never")

    @under_test.app.task(name="once.dies", base=Dying, bind=True, shared=False)
    def dies(self: Any, key: str, fails: bool = False) -> str:
        with ledger.run(self.name, key, self.request.id):
            if fails:
                ledger.note("stored", key)
                ledger.wait_gate("never")
            return key


@pytest.mark.parametrize("killed", ["child", "worker"])
def test_what_was_done_once_stays_done_though_its_process_died_before_it_could_say_so(
    make_app, workers, ledger, killed
):
    app = make_app(rules(lease=SHORT), setup=define_deaths)
    worker = workers(app)
    dies = app.app.tasks["once.dies"]
    well, badly = dies.delay("well"), dies.delay("badly", fails=True)
    wait_until(lambda: {note["key"] for note in ledger.notes("stored")} == {"well", "badly"})
    assert well.get(timeout=10) == "well"

    if killed == "worker":
        worker.kill()
    else:
        for run in ledger.runs():
            worker.kill_child(run.pid)

    accepted = wait_until(lambda: duplicate_of(found := dies.delay("badly")) is None and found, BY_TIME)
    assert accepted.id != badly.id

    def found() -> Any:
        """Never accepted, but first, while its lease lives, for another reason."""
        duplicate = duplicate_of(dies.delay("well"))
        assert duplicate.task_id == well.id
        return duplicate if duplicate.state == "done" else None

    assert wait_until(found, BY_TIME, interval=0.2).expires_in > 6 * 24 * 3600
    workers(app)
    ledger.wait_for(3, ended=False)
    assert len(ledger.runs("well")) == 1
