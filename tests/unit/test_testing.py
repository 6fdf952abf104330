"""``celery_dedupe.testing``: what its assertions pass and fail, on an app as it is in production."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_dedupe import ConfigurationError, Dedupe
from celery_dedupe.testing import Clock, Locks

pytest_plugins = ["celery_dedupe.testing"]

RULES = {
    "t.export": "until_finished",
    "t.charge": "once",
    "t.digest": {"lock": "until_expired", "period": "1h"},
    "t.quiet": {"lock": "until_finished", "on_duplicate": "none"},
}
SHARED = {"lock": "queue_and_run", "key": []}
NOWHERE = {"dedupe_url": "redis://nowhere.invalid/0", "dedupe_store_options": {"socket_timeout": 1}}


@pytest.fixture
def local(local_app):
    """An app that has the extension, with claims somewhere else and switched off."""
    local = local_app(install=False, conf={**NOWHERE, "dedupe_rules": RULES, "dedupe_mode": "off"})
    local.dedupe = Dedupe(local.app).init_app()
    for name in (*RULES, "other"):
        local.task(name=name)
    return local


@pytest.fixture
def celery_app(local) -> Iterator[Celery]:
    yield local.app
    assert local.app.dedupe is local.dedupe
    assert local.dedupe.settings.mode == "off", "after a test all is as it was"
    assert local.dedupe.policies("t.export") == ()


def call(local, name: str, *args: object) -> Any:
    return local.app.tasks[name].delay(*args)


def failure(assertion: Any, *args: object) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        assertion(*args)
    return str(caught.value)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not so at once is not waited for."""
    monkeypatch.setattr("celery_dedupe.testing.LOOKS", 1)


def test_a_duplicate_is_told_from_the_call_that_holds_the_lock(dedupe: Locks, local, hasty: None) -> None:
    first, second = call(local, "t.export", 1), call(local, "t.export", 1)

    dedupe.assert_claimed(first)
    found = dedupe.assert_dropped(second)

    assert (found.task_id, found.task, found.state) == (first.id, "t.export", "queued")
    assert (
        failure(dedupe.assert_claimed, second)
        == f"the call was dropped as a duplicate of {first.id}, which is queued"
    )
    assert failure(dedupe.assert_dropped, first) == (
        f"the call {first.id} was not dropped, it is PENDING; these locks are held:\n"
        f"{found.key} by {first.id}, which is queued"
    )


def test_a_call_that_no_rule_reaches_has_claimed_nothing(dedupe: Locks, local) -> None:
    other = call(local, "other")

    assert failure(dedupe.assert_claimed, other) == f"the call {other.id} holds no lock; no lock is held"


def test_what_returns_nothing_is_no_proof_of_a_duplicate(dedupe: Locks, local) -> None:
    call(local, "t.quiet")
    second = call(local, "t.quiet")

    assert second is None
    assert "returned None" in failure(dedupe.assert_dropped, second)


def test_a_run_that_is_turned_away_at_its_start_was_dropped(dedupe: Locks, local) -> None:
    local.task(lambda task, value: local.start(messages.pop()), name="u", dedupe="while_running")
    second, first = call(local, "u"), call(local, "u")
    messages = local.messages()

    local.start(messages.pop())

    assert second.state == "REVOKED"
    assert dedupe.assert_dropped(second).task_id == first.id


def test_a_run_that_waits_was_not_dropped(dedupe: Locks, local, hasty: None) -> None:
    local.task(
        lambda task, value: second or second.append(task.delay()) or local.run_next(),
        name="u",
        dedupe="queue_and_run",
    )
    second: list[Any] = []
    call(local, "u")

    local.run_next()

    dedupe.assert_claimed(second[0])
    assert f"the call {second[0].id} was not dropped" in failure(dedupe.assert_dropped, second[0])


class TestEager:
    @pytest.fixture(autouse=True)
    def eager(self, local) -> None:
        local.app.conf.task_always_eager = True

    def test_a_call_that_was_skipped_was_dropped(self, dedupe: Locks, local) -> None:
        first, second = call(local, "t.charge", 7), call(local, "t.charge", 7)

        dedupe.assert_claimed(first)
        assert dedupe.assert_dropped(second).state == "done"
        assert local.ran == [7]

    def test_under_a_rate_a_start_is_free_when_the_clock_is_turned(self, dedupe: Locks, local, hasty) -> None:
        local.task(name="u", dedupe={"rate": "1/m", "on_conflict": "skip"})

        assert [call(local, "u").state for _ in range(2)] == ["SUCCESS", "IGNORED"]
        assert "was not dropped, it is IGNORED" in failure(dedupe.assert_dropped, call(local, "u"))
        dedupe.no_locks_left()
        dedupe.clock.turn("65s")
        assert call(local, "u").state == "SUCCESS"

    def test_a_call_that_would_have_to_wait_was_dropped(self, dedupe: Locks, local) -> None:
        local.task(lambda task, value: value and inner.append(task.delay(0)), name="u", dedupe=SHARED)
        inner: list[Any] = []

        outer = call(local, "u", 1)

        assert dedupe.assert_dropped(inner[0]).task_id == outer.id
        assert "was not dropped, it is SUCCESS" in failure(dedupe.assert_dropped, outer)


class TestNoLocksLeft:
    def test_what_is_queued_holds_one_until_it_has_run(self, dedupe: Locks, local, hasty: None) -> None:
        result = call(local, "t.export")
        assert f"by {result.id}, which is queued" in failure(dedupe.no_locks_left)

        local.run_next()

        dedupe.no_locks_left()

    def test_what_runs_holds_one(self, dedupe: Locks, local, hasty: None) -> None:
        told: list[str] = []
        local.task(
            lambda task, value: told.append(failure(dedupe.no_locks_left)), name="u", dedupe="while_running"
        )
        result = call(local, "u")
        local.run_next()

        assert f"by {result.id}, which is running" in told[0]
        dedupe.no_locks_left()

    def test_what_once_remembers_is_none(self, dedupe: Locks, local) -> None:
        call(local, "t.charge", 7)
        local.run_next()

        dedupe.no_locks_left()
        dedupe.assert_dropped(call(local, "t.charge", 7))

    def test_a_period_is_one_until_the_clock_is_turned(self, dedupe: Locks, local, hasty: None) -> None:
        call(local, "t.digest")
        local.run_next()
        assert "which is queued" in failure(dedupe.no_locks_left)

        dedupe.clock.turn("1h")

        dedupe.no_locks_left()

    def test_a_worker_is_given_time(self, dedupe: Locks, local) -> None:
        call(local, "t.export")
        looked = threading.Event()
        store = local.dedupe.guard.store.places["default"].store
        scan = store.scan

        def seen(pattern: str) -> Any:
            looked.set()
            return scan(pattern)

        store.scan = seen
        worker = threading.Thread(target=lambda: looked.wait(60) and local.run_next())
        worker.start()
        dedupe.no_locks_left()
        worker.join()


class TestNamedStores:
    @pytest.fixture
    def local(self, local_app):
        stores = {"ledger": "db+postgresql+psycopg://nowhere.invalid/ledger"}
        rules = {"t.charge": ["until_finished", {"lock": "once", "store": "ledger"}]}
        conf = {**NOWHERE, "dedupe_stores": stores, "dedupe_rules": rules, "dedupe_mode": "off"}
        local = local_app(install=False, conf=conf)
        local.dedupe = Dedupe(local.app).init_app()
        local.task(name="t.charge")
        return local

    @pytest.fixture
    def celery_app(self, local) -> Celery:
        return local.app

    def test_all_are_in_memory(self, dedupe: Locks, local) -> None:
        first, second = call(local, "t.charge", 7), call(local, "t.charge", 7)
        dedupe.assert_claimed(first)
        dedupe.assert_dropped(second)
        local.run_next()
        assert dedupe.assert_dropped(call(local, "t.charge", 7)).key.startswith("ledger/")
        dedupe.no_locks_left()


def test_a_lock_frees_itself_when_the_clock_is_turned(dedupe: Locks, local) -> None:
    call(local, "t.export")

    dedupe.clock.turn(timedelta(minutes=59))
    dedupe.assert_dropped(call(local, "t.export"))
    dedupe.clock.turn(60)
    dedupe.assert_claimed(call(local, "t.export"))


def test_the_clock_turns_by_durations_only() -> None:
    clock = Clock()
    before = clock()
    clock.turn("1.5s")
    assert clock() == before + 1_500_001
    with pytest.raises(ValueError, match="write seconds, a timedelta, or a text"):
        clock.turn("soon")


class TestAppWithoutTheExtension:
    @pytest.fixture
    def celery_app(self, local_app) -> Iterator[Celery]:
        app = local_app(install=False, conf={"dedupe_rules": {"t.*": "until_finished"}}).app
        yield app
        assert not hasattr(app, "dedupe")

    @pytest.fixture
    def traced(self, celery_app: Celery) -> None:
        @celery_app.task(name="t.export", shared=False)
        def export(): ...

        celery_app.finalize()
        export.__trace__ = object()  # as a worker's consumer leaves it

    def test_it_has_it_for_the_test(self, celery_app: Celery, dedupe: Locks) -> None:
        first, second = celery_app.send_task("t.export"), celery_app.send_task("t.export")

        dedupe.assert_claimed(first)
        dedupe.assert_dropped(second)

    def test_a_worker_that_runs_already_would_not_heed_it(
        self, request: pytest.FixtureRequest, celery_app: Celery, traced: None
    ) -> None:
        assert "name the fixture dedupe before celery_worker" in failure(request.getfixturevalue, "dedupe")


class TestReconfigured:
    def test_all_is_as_it_was_after_an_error(self, local) -> None:
        def fail() -> None:
            with local.dedupe.reconfigured(mode="enforce", url="memory://", store_options={}):
                assert local.dedupe.policies("t.export")[0].lock == "until_finished"
                raise LookupError

        with pytest.raises(LookupError):
            fail()

        assert local.dedupe.policies("t.export") == ()

    def test_a_setting_that_is_none_is_an_error(self, local) -> None:
        with local.dedupe.reconfigured(modus="enforce"), pytest.raises(ConfigurationError, match="modus"):
            local.dedupe.check()
