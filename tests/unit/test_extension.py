"""``Dedupe(app).init_app()`` and its mirror: attached once, to one app, and gone without a trace."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, current_app
from celery import signals as celery_signals

from celery_dedupe import ConfigurationError, Dedupe, StoreUnavailable, duplicate_of
from celery_dedupe.signals import LockTaken, RanUnprotected
from celery_dedupe.store.memory import MemoryStore
from tests.unit.conftest import NOTHING, Consumer

SIGNALS = [
    celery_signals.before_task_publish,
    celery_signals.task_received,
    celery_signals.task_prerun,
    celery_signals.task_postrun,
    celery_signals.task_revoked,
    celery_signals.heartbeat_sent,
    celery_signals.task_failure,
    celery_signals.task_retry,
    celery_signals.task_internal_error,
    celery_signals.task_unknown,
    celery_signals.task_rejected,
    celery_signals.worker_init,
    celery_signals.worker_ready,
    celery_signals.worker_shutdown,
]


def receivers() -> list[list[Any]]:
    return [list(signal.receivers) for signal in SIGNALS]


def test_every_signal_has_our_receiver_first(local_app):
    before = receivers()
    local_app({})
    for old, new in zip(before, receivers(), strict=True):
        assert new[1:] == old
        assert len(new) == len(old) + 1


def test_init_app_twice_is_once(local_app):
    a = local_app({"t": "until_finished"})
    attached, send_task = receivers(), a.app.send_task
    again = Dedupe(a.app).init_app()
    assert again is a.dedupe is a.app.dedupe
    assert a.dedupe.init_app() is a.dedupe
    assert receivers() == attached
    assert a.app.send_task == send_task
    a.task().delay(1)
    assert a.store.calls == ["claim"]


def test_a_second_one_with_settings_of_its_own_is_told_that_they_would_not_count(local_app):
    a = local_app({"t": "until_finished"})
    with pytest.raises(ConfigurationError, match=r"has a Dedupe already.*rules"):
        Dedupe(a.app, rules={"t": "once"}).init_app()
    assert a.app.dedupe is a.dedupe


def test_check_tells_a_publisher_of_a_rule_that_does_not_fit_before_its_first_call(local_app):
    a = local_app({"t": {"key": ["account"]}})
    a.task()
    with pytest.raises(ConfigurationError, match="account"):
        a.dedupe.check()


def test_close_puts_everything_back(local_app):
    class Base(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None: ...

    a = local_app({"*": "until_finished"}, install=False)
    own, plain = a.task(base=Base), a.task(name="plain")
    a.app.finalize()

    def state() -> Any:
        seams = [vars(cls).get("before_start") for cls in (a.app.Task, Base, type(own), type(plain))]
        return seams, receivers(), list(a.app.on_after_finalize.receivers)

    before, attributes = state(), {"send_task", "dedupe"} & set(vars(a.app))
    a.dedupe.init_app()
    assert all(hasattr(task.before_start, "dedupe_seam") for task in (own, plain))
    assert all(old != new for old, new in zip(before, state(), strict=True))
    own.delay(1)
    a.dedupe.close()
    assert state() == before
    assert {"send_task", "dedupe"} & set(vars(a.app)) == attributes == set()
    assert own.delay(1).id != own.delay(1).id


def test_close_puts_back_what_it_stood_before(local_app):
    """Another extension had shadowed ``send_task`` on the app already."""
    a = local_app({"t": "until_finished"}, install=False)
    passed: list[str] = []
    original = a.app.send_task

    def counting(name: str, *args: Any, **options: Any) -> Any:
        passed.append(name)
        return original(name, *args, **options)

    a.app.send_task = counting
    a.dedupe.init_app()
    t = a.task()
    t.delay(1), t.delay(2)
    assert passed == ["t", "t"]
    assert a.waiting() == 2
    a.dedupe.close()
    assert a.app.send_task is counting


def test_close_twice_or_before_init_app_is_harmless(local_app):
    Dedupe().close()
    a = local_app({})
    a.dedupe.close()
    a.dedupe.close()


def test_after_close_it_may_be_attached_again_and_reads_its_settings_anew(local_app):
    a = local_app()
    t = a.task()
    a.app.conf.dedupe_rules = {"t": {"on_duplicate": "none"}}
    t.delay(1)
    assert t.delay(1) is None
    a.dedupe.close()
    a.app.conf.dedupe_rules = {"t": "until_finished"}
    a.dedupe.init_app()
    first = t.delay(1)
    assert t.delay(1).id == first.id


def test_one_dedupe_is_for_one_app(local_app):
    a, b = local_app({}), local_app(install=False)
    with pytest.raises(
        ConfigurationError, match=r"is attached to .* already: each app needs a Dedupe of its own"
    ):
        a.dedupe.init_app(b.app)
    assert a.dedupe.app is a.app
    assert "dedupe" not in b.app.__dict__


def test_an_app_may_be_given_late(local_app):
    a = local_app(install=False)
    dedupe = Dedupe(rules={"t": "until_finished"}, client=a.store)
    with pytest.raises(
        ConfigurationError, match=r"Dedupe\(app\)\.init_app\(\) or Dedupe\(\)\.init_app\(app\)"
    ):
        dedupe.init_app()
    assert dedupe.init_app(a.app) is dedupe
    t = a.task()
    assert t.delay(1).id == t.delay(1).id
    dedupe.close()


def test_the_current_app_is_the_app_it_stands_for(local_app):
    """Signals bring the app itself, which no proxy of it is."""
    a = local_app(install=False)
    a.app.set_current()
    dedupe = Dedupe(current_app, rules={"t": "until_finished"}, client=a.store).init_app()
    assert dedupe.app is a.app
    a.task().delay(1)
    a.run_next()
    assert [event.stage for event in a.told(LockTaken)] == ["queued", "running"]
    dedupe.close()


def test_settings_are_read_on_first_use(local_app):
    """Case 51: whatever comes first, ``init_app`` or ``config_from_object``."""
    a = local_app()
    a.app.config_from_object(
        SimpleNamespace(
            dedupe_rules={"t": {"on_duplicate": "none"}},
            broker_url="memory://",
            result_backend="cache+memory://",
            task_default_queue=a.app.main,
        )
    )
    t = a.task()
    t.delay(1)
    assert t.delay(1) is None


def test_arguments_beat_the_configuration(local_app):
    a = local_app({"t": "until_finished"})
    a.app.conf.dedupe_rules = {}
    t = a.task()
    assert t.delay(1).id == t.delay(1).id


def test_a_tasks_name_is_resolved_once(local_app, monkeypatch):
    a = local_app({"*": "until_finished"})
    t = a.task()
    t.delay(1)
    monkeypatch.setattr(a.dedupe.settings.rules, "resolve", lambda name: pytest.fail(f"{name} again"))
    t.delay(2)


def test_a_task_that_becomes_known_later_brings_its_own_terms(local_app):
    """Published by name first, and its module is imported after that."""
    a = local_app({"*": "until_finished"})
    a.app.finalize()
    a.app.send_task("t", (1,))
    t = a.task(dedupe={"on_duplicate": "none"})
    t.delay(2)
    assert t.delay(value=2) is None


def test_celerys_own_tasks_are_left_alone(local_app):
    a = local_app({"*": "until_finished"})
    assert a.dedupe.policies("celery.backend_cleanup") == ()


def test_the_store_is_opened_by_the_first_that_needs_it(local_app):
    a = local_app({"t": "until_finished"}, client=None, url="memory://")
    a.task(name="free", dedupe=False).delay(1)
    assert a.dedupe._guard is None
    a.task().delay(1)
    assert isinstance(a.dedupe.guard.store.places["default"].store, MemoryStore)


# Workers


def worker(app: Celery) -> Any:
    return Consumer(app)


@pytest.mark.parametrize(
    ("rules", "settings", "told"),
    [
        ({"t": "until_finised"}, {}, r"dedupe_rules|rules.*'until_finised'.*until_finished"),
        ({"t": {"key": ["nam"]}}, {}, r"'t'.*'nam'"),
        ({"t": "once"}, {"client": None, "url": "amqp://guest:secret@mq"}, "amqp"),
        ({"t": "once"}, {"client": None}, "dedupe_url is not set"),
        ({"t": {"key": "no.such.function"}}, {}, "no.such.function"),
    ],
)
def test_a_worker_does_not_start_with_a_bad_setting(local_app, rules, settings, told):
    """Case 52. One line, no traceback: SystemExit prints what it carries."""
    a = local_app(rules, **settings)
    a.task()
    with pytest.raises(SystemExit, match=told) as caught:
        celery_signals.worker_init.send(sender=worker(a.app))
    assert str(caught.value).startswith("celery-dedupe: ")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_another_apps_worker_is_not_ours(local_app):
    a, b = local_app({"t": "until_finised"}), local_app({})
    celery_signals.worker_init.send(sender=worker(b.app))
    assert a.dedupe._settings is None


def test_a_worker_has_the_seam_on_every_task(local_app):
    """Of a class of its own, and defined after the app was finalized: its tracer is not built yet."""

    class Base(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None: ...

    a = local_app({})
    a.app.finalize()
    tasks = [a.task(), a.task(name="u", base=Base)]
    assert not hasattr(tasks[1].before_start, "dedupe_seam")
    celery_signals.worker_init.send(sender=worker(a.app))
    assert all(hasattr(task.before_start, "dedupe_seam") for task in tasks)


def test_a_worker_in_mode_off_starts_without_a_store(local_app):
    a = local_app({"t": "once"}, mode="off", client=None)
    celery_signals.worker_init.send(sender=worker(a.app))
    celery_signals.worker_ready.send(sender=worker(a.app))
    celery_signals.worker_shutdown.send(sender=worker(a.app))
    assert a.dedupe._guard is None


def test_a_worker_that_shuts_down_frees_what_its_process_holds(local_app):
    a = local_app({"t": "while_running"})
    shutdown: list[Any] = []

    def body(task: Any, value: Any) -> None:
        celery_signals.worker_shutdown.send(sender=worker(a.app))
        shutdown.append(a.store.held())

    a.task(body).delay(1)
    a.run_next()
    assert shutdown == [NOTHING]


def test_an_app_that_is_closed_is_not_kept_alive():
    app = Celery("gone", set_as_current=False, broker="memory://")
    Dedupe(app, url="memory://").init_app().close()
    seen = weakref.ref(app)
    app.close()
    del app
    gc.collect()
    assert seen() is None


def test_passwords_show_nowhere(local_app, log):
    """An outage's line, event and error name the server and no secret."""
    a = local_app({"t": "once"}, client=None, url="redis+socket://user:secret@/no/such/socket", defaults={})
    t = a.task()
    with pytest.raises(StoreUnavailable, match="/no/such/socket") as caught:
        t.delay(1)
    t.apply_async((1,), dedupe={"on_store_error": "allow"})
    told = [str(caught.value), repr(caught.value), log.text, repr(a.events), repr(a.dedupe.settings)]
    assert not [text for text in told if "secret" in text]
    assert len(a.told(RanUnprotected)) == 1


def test_a_publish_by_name_of_a_task_that_nobody_has_used_yet_makes_the_same_key(local_app):
    """Case 33. Celery makes the task when it is first used; its signature is there before."""
    a = local_app({"t": {"lock": "until_finished", "key": ["value"]}})

    @a.app.task(name="t", shared=False)
    def task(value: Any = None) -> None:
        raise AssertionError("nobody runs it")

    a.app.send_task("t", (1,))
    assert not a.app.finalized
    assert duplicate_of(task.delay(value=1)) is not None
