"""Eager calls take no locks unless ``dedupe_eager``; then a refused one does not run."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.app.task import Task

from celery_dedupe import Dedupe, DuplicateTask

ONCE = {"t.*": "once"}


class Custom(Task):
    abstract = True


class Starting(Task):
    abstract = True
    started = 0

    def before_start(self, task_id, args, kwargs):
        type(self).started += 1


@pytest.fixture
def app():
    app = Celery("eager", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(task_always_eager=True, dedupe_url="memory://", dedupe_rules=ONCE, dedupe_eager=True)
    Dedupe(app).init_app()
    yield app
    if hasattr(app, "dedupe"):
        app.dedupe.close()
    app.close()


def states_of_two_calls(app, **options):
    ran = []

    @app.task(name="t.charge", shared=False, **options)
    def charge(order):
        ran.append(order)

    states = [charge.delay(7).state for _ in range(2)]
    return states, ran


def test_the_second_call_is_skipped_in_an_app_that_nobody_has_finalized(app):
    assert states_of_two_calls(app) == (["SUCCESS", "IGNORED"], [7])
    assert not app.finalized


def test_so_it_is_for_a_task_that_is_defined_after_the_app_was_finalized(app):
    app.finalize()

    assert states_of_two_calls(app) == (["SUCCESS", "IGNORED"], [7])


@pytest.mark.parametrize("base", [Custom, Starting])
def test_so_it_is_for_a_task_with_a_base_of_its_own_once_the_app_is_finalized(app, base):
    ran = []

    @app.task(name="t.charge", shared=False, base=base)
    def charge(order):
        ran.append(order)

    app.finalize()

    assert [charge.delay(7).state for _ in range(2)] == ["SUCCESS", "IGNORED"]
    assert ran == [7]
    if base is Starting:
        assert type(app.tasks["t.charge"]).started == 1, "the task's own before_start runs for a run only"


def test_a_call_that_would_have_to_wait_is_told_that_it_did_not_run():
    app = Celery("eager", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(task_always_eager=True, dedupe_url="memory://", dedupe_eager=True)
    app.conf.dedupe_rules = {"t.*": "queue_and_run"}
    Dedupe(app).init_app()
    inner = []

    @app.task(name="t.sync", shared=False)
    def sync(account, again=True):
        if not inner:
            inner.append(None)
            inner[0] = sync.delay(account)

    assert sync.delay(7).state == "SUCCESS"
    assert inner[0].state == "FAILURE"
    assert isinstance(inner[0].result, DuplicateTask)
    app.dedupe.close()
    app.close()


def test_without_dedupe_eager_no_call_takes_a_lock(app):
    app.conf.dedupe_eager = False

    assert states_of_two_calls(app) == (["SUCCESS", "SUCCESS"], [7, 7])


def test_close_leaves_no_seam_behind(app):
    states_of_two_calls(app, base=Custom)
    app.finalize()
    charge = app.tasks["t.charge"]
    assert type(charge).before_start is not Task.before_start

    app.dedupe.close()

    assert app.Task.before_start is Task.before_start
    assert type(charge).before_start is Task.before_start
    assert [charge.delay(7).state for _ in range(2)] == ["SUCCESS", "SUCCESS"]
