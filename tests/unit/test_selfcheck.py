"""What a worker says when it is ready: one line if all is well, else what is not and how to mend it."""

from __future__ import annotations

from typing import Any

import pytest
from celery import signals as celery_signals
from celery.app.task import Task

from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.errors import StoreUnavailable
from tests.unit.conftest import Consumer

SOUND = StoreFacts("valkey 9.1", evicts="", persists=True, writable=True)


class FactsStore:
    """A store that is asked for nothing but its facts."""

    def __init__(self, facts: StoreFacts | None = SOUND) -> None:
        self._facts = facts

    def facts(self) -> StoreFacts:
        if self._facts is None:
            raise StoreUnavailable("redis://localhost:1/0 does not answer (refused)")
        return self._facts

    def claim(self, *args: Any) -> None: ...
    def begin(self, *args: Any) -> None: ...
    def finish(self, *args: Any, **named: Any) -> None: ...
    def close(self) -> None: ...


def ready(a: Any) -> None:
    """A worker of the app starts."""
    celery_signals.worker_init.send(sender=Consumer(a.app))
    celery_signals.worker_ready.send(sender=Consumer(a.app))


@pytest.fixture
def said(log):
    """``said()``: pairs of level and text."""
    return lambda: [
        (record.levelname, record.getMessage())
        for record in log.records
        if "celery-dedupe" in record.getMessage()
    ]


def test_where_all_is_well_it_says_so_in_one_line(local_app, said):
    a = local_app({"t": "until_finished"}, client=FactsStore())
    a.task()
    a.task(name="free")

    ready(a)

    ((level, line),) = said()
    assert level == "INFO"
    assert line.startswith("celery-dedupe: all in place: enforce, 1 of ")
    assert "claims in valkey 9.1 at a client of the app's own" in line
    assert f"1 of {len(a.app.tasks)} tasks" in line


def test_its_line_shows_no_password(local_app, said, monkeypatch):
    monkeypatch.setattr("celery_dedupe.store.connect.open_store", lambda *args: FactsStore())
    a = local_app({"t": "until_finished"}, client=None, url="redis://me:secret@localhost:6379/3")

    ready(a)

    ((_, line),) = said()
    assert "redis://me:***@localhost:6379/3" in line


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_the_mode_is_told_and_off_says_nothing(local_app, said, mode):
    a = local_app({"t": "until_finished"}, client=FactsStore(), mode=mode)

    ready(a)

    assert [line.partition(",")[0] for _, line in said()] == (
        ["celery-dedupe: all in place: observe"] if mode == "observe" else []
    )


def test_a_store_that_does_not_answer_is_a_warning(local_app, said):
    a = local_app({"t": "until_finished"}, client=FactsStore(None))
    a.task()

    ready(a)

    ((level, line),) = said()
    assert level == "WARNING"
    assert "redis://localhost:1/0 does not answer" in line
    assert "unprotected" in line


def test_what_was_taken_away_is_named_with_the_mend(local_app, said):
    """Case 40: the start-up check shows whether the seams are in place."""
    a = local_app({"t": "until_finished"}, client=FactsStore())
    signal = celery_signals.before_task_publish
    uid = next(lookup[0] for lookup, _ in signal.receivers if str(id(a.app)) in str(lookup[0]))
    signal.disconnect(dispatch_uid=uid)
    attached, a.app.send_task = a.app.send_task, lambda *args, **options: None

    ready(a)

    assert [level for level, _ in said()] == ["WARNING", "WARNING"]
    assert [line.removeprefix("celery-dedupe: ").partition(" is no longer")[0] for _, line in said()] == [
        "the receiver of before_task_publish",
        "app.send_task",
    ]
    assert all("call init_app after" in line for _, line in said())
    a.app.send_task = attached


def test_a_task_whose_class_lost_the_seam_is_named(local_app, said):
    """Case 40."""

    class Late(Task):
        abstract = True

    a = local_app({"t": "until_finished"}, client=FactsStore())
    task = a.task(base=Late)
    a.task(name="free")
    celery_signals.worker_init.send(sender=Consumer(a.app))
    type(task).before_start = lambda *args: None

    celery_signals.worker_ready.send(sender=Consumer(a.app))

    ((level, line),) = said()
    assert level == "WARNING"
    assert line.startswith("celery-dedupe: t runs even if it is refused")


def test_several_things_are_several_lines(local_app, said):
    facts = StoreFacts("valkey 9.1", evicts="allkeys-lru", persists=False, writable=False)
    a = local_app({"t": "once"}, client=FactsStore(facts))
    a.task()

    ready(a)

    assert [level for level, _ in said()] == ["WARNING"] * 3


@pytest.mark.parametrize(
    ("broker", "options", "expected"),
    [
        ("redis://localhost:1", {}, None),
        ("redis://localhost:1", {"visibility_timeout": 30}, 30),
        ("redis+socket:///tmp/redis.sock", {"visibility_timeout": 30}, 30),
        ("rediss://localhost:1", {"visibility_timeout": 45}, 45),
        ("sentinel://localhost:1;sentinel://localhost:2", {"visibility_timeout": 45}, 45),
        (["redis://localhost:1", "redis://localhost:2"], {"visibility_timeout": 45}, 45),
        ("redis://localhost:1", {"visibility_timeout": "30"}, 30),
        ("amqp://localhost:1", {"visibility_timeout": 30}, None),
        ("memory://", {}, None),
    ],
)
def test_the_lease_is_held_against_the_brokers_visibility_timeout(local_app, said, broker, options, expected):
    conf = {"broker_url": broker, "broker_transport_options": options}
    a = local_app({"t": "until_finished"}, client=FactsStore(), conf=conf)
    a.task()

    ready(a)

    texts = [line for level, line in said() if level == "WARNING"]
    assert len(texts) == (0 if expected is None else 1)
    if expected is not None:
        assert f"the broker's visibility_timeout, {expected} s" in texts[0]


@pytest.mark.parametrize(("lease", "level"), [("1h", "INFO"), ("2h", "WARNING")])
def test_redis_redelivers_after_an_hour_unless_told(local_app, said, lease, level):
    conf = {"broker_url": "redis://localhost:1"}
    a = local_app({"t": {"lock": "until_finished", "lease": lease}}, client=FactsStore(), conf=conf)
    a.task()

    ready(a)

    assert [found for found, _ in said()] == [level]


def test_the_broker_it_reads_from_counts(local_app, said):
    conf = {
        "broker_url": "amqp://localhost:1",
        "broker_read_url": "redis://localhost:1",
        "broker_transport_options": {"visibility_timeout": 30},
    }
    a = local_app({"t": "until_finished"}, client=FactsStore(), conf=conf)
    a.task()

    ready(a)

    assert [level for level, _ in said()] == ["WARNING"]


@pytest.mark.parametrize(
    ("backend", "level"), [("rpc://", "WARNING"), ("disabled://", "INFO"), (None, "INFO")]
)
def test_results_that_nobody_else_can_read(local_app, said, backend, level):
    a = local_app({"t": "until_finished"}, client=FactsStore())
    a.app.conf.result_backend = backend
    a.task()

    ready(a)

    assert [found for found, _ in said()] == [level]
