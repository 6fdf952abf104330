"""Receivers of Celery's signals: of one app only, and ahead of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery import Celery
from celery.utils.dispatch import Signal


class Receivers:
    """What is connected to signals for one app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connected: list[tuple[Any, str]] = []

    def connect(self, table: Iterable[tuple[Signal, Callable[..., None]]]) -> None:
        """Have each signal's handler called for those of its senders that are the app's own."""
        for signal, handler in table:
            self._connect(signal, handler)

    def disconnect(self) -> None:
        """Leave every signal as it was."""
        while self._connected:
            signal, uid = self._connected.pop()
            signal.disconnect(dispatch_uid=uid)

    def gone(self) -> list[str]:
        """Names of the signals from which somebody has taken a receiver away since."""
        return [
            signal.name
            for signal, uid in self._connected
            if not any(lookup[0] == uid for lookup, _ in signal.receivers)
        ]

    def _connect(self, signal: Any, handler: Callable[..., None]) -> None:
        def receive(sender: Any = None, **named: Any) -> None:
            # Signals are global. Senders are tasks, consumers and workers, each of which has its app;
            # before_task_publish sends a task's name, and its gate knows its own publishes. A heart has none.
            # The end of a pool's child is for all apps: its sender is a host's name, or None in older Celery.
            if sender is None or isinstance(sender, str) or _app_of(sender) is self._app:
                handler(sender=sender, **named)

        uid = f"celery_dedupe:{id(self._app)}:{handler.__name__}"
        signal.connect(receive, weak=False, dispatch_uid=uid)
        self._connected.append((signal, uid))
        # First in the list, so that no tracer opens a span for a publish that does not happen.
        with signal.lock:
            signal.receivers.insert(0, signal.receivers.pop())
            signal.sender_receivers_cache.clear()


def _app_of(sender: object) -> object:
    return getattr(getattr(sender, "eventer", sender), "app", None)
