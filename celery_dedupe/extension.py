"""``Dedupe(app).init_app()``: puts the parts together and attaches them to a Celery app by signals alone."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from celery.utils.dispatch import Signal

from celery_dedupe import inspection, messages, selfcheck
from celery_dedupe.core.call import Call
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rules import Match
from celery_dedupe.endings import Endings
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.gates.publish import PublishGate
from celery_dedupe.gates.run import RunGate
from celery_dedupe.guard import Guard
from celery_dedupe.receivers import Receivers
from celery_dedupe.selfcheck import Checked
from celery_dedupe.settings import Settings, read_settings, store_names
from celery_dedupe.store.connect import open_stores
from celery_dedupe.store.protocol import NotSetUp
from celery_dedupe.task_policies import TaskPolicies

logger = logging.getLogger("celery_dedupe")

ATTRIBUTE = "dedupe"  # ``app.dedupe`` is the extension that is attached to the app


class Dedupe:
    """Stops duplicate work of one Celery app.

    Settings are read on first use, so ``init_app`` may come before or after ``config_from_object``.

    Arguments:
        app: the Celery app; may be given to ``init_app`` instead.
        **settings: ``url``, ``stores``, ``rules``, ``policies``, ``defaults``, ``mode``, ``prefix``,
            ``store_options``, ``eager``, ``stats``, ``client``: each beats the setting ``dedupe_...`` of its
            name in the configuration.
    """

    app: Any  # A Celery app; celery's published types leave out what is used of it here.

    def __init__(self, app: Celery | None = None, **settings: Any) -> None:
        self.app = app
        self._overrides = settings
        self._lock = threading.RLock()
        self._settings: Settings | None = None
        self._guard: Guard | None = None
        self._tasks = TaskPolicies(self)
        self._receivers: Receivers | None = None

    def init_app(self, app: Celery | None = None) -> Dedupe:
        """Attach to the app's signals and return the extension.

        On an app that has one already it has no effect; if that one was made with other settings, it raises
        ``ConfigurationError``.
        """
        app = app or self.app
        if app is None:
            raise ConfigurationError(
                "Dedupe has no app: write Dedupe(app).init_app() or Dedupe().init_app(app)"
            )
        # celery.current_app and the like stand for an app; what signals bring is the app itself.
        app = getattr(app, "_get_current_object", lambda: app)()
        attached: Dedupe | None = app.__dict__.get(ATTRIBUTE)
        if attached is not None:
            if self._overrides and self._overrides != attached._overrides:
                raise ConfigurationError(
                    f"{app!r} has a Dedupe already, which these settings would not reach: "
                    f"{', '.join(self._overrides)}; write them as dedupe_... in the app's configuration"
                )
            return attached
        if self._receivers is not None:
            raise ConfigurationError(
                f"this Dedupe is attached to {self.app!r} already: each app needs a Dedupe of its own"
            )
        self.app = app
        self._publish_gate = PublishGate(self)
        self._run_gate = RunGate(self, lambda: self.settings.eager)
        self._endings = Endings(self)
        setattr(self.app, ATTRIBUTE, self)
        self._shadowed = app.__dict__.get("send_task")
        self.app.send_task = self._publish_gate.send_task
        self._receivers = Receivers(app)
        self._receivers.connect(self._table())
        inspection.register()
        # Tracers look for before_start when they are built: for eager calls that may be at any time from now.
        self._run_gate.attach()
        self.app.on_after_finalize.connect(self._on_finalize, weak=False)
        if self.app.finalized:
            self._run_gate.install()
        return self

    def close(self) -> None:
        """Undo ``init_app``: the app is as it was, leases held by this process are renewed no more."""
        if self._receivers is None:
            return
        self._receivers.disconnect()
        self._receivers = None
        self.app.on_after_finalize.disconnect(self._on_finalize)
        self._run_gate.uninstall()
        if self._shadowed is None:
            del self.app.send_task
        else:
            self.app.send_task = self._shadowed
        delattr(self.app, ATTRIBUTE)
        self._forget()

    def connect(self, signal: Signal, handler: Callable[..., None]) -> None:
        """Have a signal's handler called for the app's senders, ahead of all others, until ``close``."""
        if self._receivers is None:
            raise ConfigurationError("this Dedupe is attached to no app yet: call init_app first")
        self._receivers.connect([(signal, handler)])

    def check(self) -> None:
        """Raise ``ConfigurationError`` for the first setting, rule or task that is wrong; connects nowhere.

        A worker does this when it starts. A program that only publishes finds a mistake at its first publish
        of the task, unless it calls this before: in a test, or when it starts.
        """
        for name in self.app.tasks:
            self.policies(name)
        if self.settings.mode != "off":
            self.guard  # noqa: B018 - opens the store: a bad URL or option shows here

    def checked(self) -> Checked:
        """What a worker says of itself when it is ready, of this process."""
        places = self.guard.store.places.values()
        return selfcheck.check(self.app, self.settings, places, self._tasks.guarded(), self._gone())

    def guarded(self) -> dict[str, tuple[Policy, ...]]:
        """The tasks that have policies, of those asked about."""
        return self._tasks.guarded()

    def inspected(self, node: str, queues: Collection[str]) -> dict[str, Any]:
        """What the worker ``node`` answers to ``celery inspect dedupe``."""
        return inspection.answer(self, node, queues, self._endings.received())

    @contextmanager
    def reconfigured(self, **settings: Any) -> Iterator[None]:
        """Go by ``settings`` within the block, whatever else is given; the store is another one, too.

        For tests. Nothing may run under the extension when the block begins or ends.
        """
        before = self._overrides, self._settings, self._guard
        self._overrides = {**self._overrides, **settings}
        self._guard = self._settings = None
        self._tasks.forget()
        try:
            yield
        finally:
            self._forget()
            self._overrides, self._settings, self._guard = before

    def store_names(self) -> set[str]:
        """The names of the app's stores, whatever else is wrong in its settings or rules."""
        return store_names(self.app.conf, **self._overrides)

    @property
    def settings(self) -> Settings:
        """The settings, read on first use. Raises ``ConfigurationError``."""
        found = self._settings
        if found is None:
            with self._lock:
                found = self._settings = self._settings or read_settings(self.app.conf, **self._overrides)
        return found

    @property
    def guard(self) -> Guard:
        """What claims, runs and ends act through; opens the store on first use."""
        found = self._guard
        if found is None:
            with self._lock:
                found = self._guard = self._guard or self._open()
        return found

    def policies(self, task: str, override: Any = None) -> tuple[Policy, ...]:
        """The policies of a task: its own ``dedupe=``, else the rules'; with a call's own laid over them."""
        return self._tasks.policies(task, override)

    def match(self, task: str) -> Match:
        """What decides for a task, its own ``dedupe=`` or a rule, whatever the mode."""
        return self._tasks.match(task)

    def signature(self, task: str) -> inspect.Signature | None:
        """The signature that callers of a task see; ``None`` where the task is unknown here."""
        return self._tasks.signature(task)

    def keys(self, call: Call, policies: Sequence[Policy]) -> tuple[str, ...]:
        """One key a policy."""
        return self._tasks.keys(call, policies)

    def _forget(self) -> None:
        if self._guard is not None:
            self._guard.close()
        self._guard = self._settings = None
        self._tasks.forget()

    def _open(self) -> Guard:
        settings = self.settings
        counted_as = f"{settings.prefix}:stats" if settings.stats else ""
        return Guard(
            open_stores(settings.stores), counted_as=counted_as, app=self.app, state_of=self._state_of
        )

    def _state_of(self, task_id: str, since: int) -> str | None:
        try:
            return messages.final_state(self.app, task_id, since)
        except Exception:
            logger.debug("No look at the result of %s", task_id, exc_info=True)
            return None

    def _table(self) -> list[tuple[Signal, Callable[..., None]]]:
        """Every signal with its handler."""
        endings, run = self._endings, self._run_gate
        return [
            (celery_signals.before_task_publish, self._publish_gate.before_task_publish),
            (celery_signals.task_received, endings.task_received),
            (celery_signals.task_prerun, run.task_prerun),
            (celery_signals.task_postrun, run.task_postrun),
            (celery_signals.task_revoked, endings.task_revoked),
            (celery_signals.heartbeat_sent, endings.heartbeat_sent),
            (celery_signals.task_failure, endings.task_failure),
            (celery_signals.task_retry, endings.task_retry),
            (celery_signals.task_internal_error, endings.task_internal_error),
            (celery_signals.task_unknown, endings.task_unknown),
            (celery_signals.task_rejected, endings.task_rejected),
            (celery_signals.worker_init, self._on_worker_init),
            (celery_signals.worker_ready, self._on_worker_ready),
            (celery_signals.worker_process_shutdown, self._on_worker_process_shutdown),
            (celery_signals.worker_shutdown, self._on_worker_shutdown),
        ]

    def _on_finalize(self, **_: Any) -> None:
        self._run_gate.install()

    def _on_worker_init(self, **_: Any) -> None:
        """A worker does not start with a bad setting: better now, in one line, than task by task later."""
        try:
            self.check()
            self._run_gate.install()
            if self.settings.mode != "off":
                for place in self.guard.store.places.values():
                    selfcheck.refuse_unready(place)
        except (ConfigurationError, NotSetUp) as error:
            raise SystemExit(f"celery-dedupe: {error}") from None

    def _on_worker_ready(self, **_: Any) -> None:
        settings = self.settings
        if settings.mode != "off":
            selfcheck.report(self.app, settings, self._tasks.guarded(), self.checked())

    def _gone(self) -> list[str]:
        """What ``init_app`` attached and somebody has taken away since."""
        gone = [f"the receiver of {name}" for name in self._receivers.gone()] if self._receivers else []
        return gone if self.app.send_task == self._publish_gate.send_task else [*gone, "app.send_task"]

    def _on_worker_process_shutdown(self, **_: Any) -> None:
        """A child of the pool leaves by ``os._exit``, so nothing of its own would run after this."""
        if self._guard is not None:
            self._guard.counters.flush()

    def _on_worker_shutdown(self, **_: Any) -> None:
        """Runs have ended by now, or have been killed: what this process still holds is freed."""
        if self._guard is not None:
            self._guard.abandon()
