"""The tasks of ``tests.apps.jobs`` once for each lock, as ``LOCK.NAME``, and some that acknowledge late.

The tasks of a lock share it a ``key``, so that any of them shows whether another one has left it free.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Task
from celery.result import AsyncResult

from celery_dedupe import current_lease
from celery_dedupe.core.locks import LOCKS
from tests.apps.assembly import AppUnderTest
from tests.apps.jobs import define_tasks


def rules(*, period: Any = "1h", **lease: Any) -> dict[str, Any]:
    """A rule for each lock; ``lease`` is for those that have one."""
    found: dict[str, Any] = {}
    for lock, traits in LOCKS.items():
        policy = {"lock": lock, "key": ["key"], "scope": lock}
        if traits.periodic:
            policy["period"] = period
        found[f"{lock}.*"] = {**policy, **lease} if traits.runs else policy
    return found


def define_by_lock(under_test: AppUnderTest) -> None:
    """For ``make_app(setup=...)``."""
    for lock in LOCKS:
        define_tasks(under_test.app, under_test.ledger, lock)
        _define_late(under_test, lock)


def call(app: Any, lock: str, task: str, key: str, *args: Any, **options: Any) -> AsyncResult[Any]:
    """Publishes ``LOCK.TASK``; by name if this app does not have it."""
    name = f"{lock}.{task}"
    if name not in app.tasks:
        return app.send_task(name, (key, *args), **options)
    return app.tasks[name].apply_async((key, *args), **options)


def _define_late(under_test: AppUnderTest, lock: str) -> None:
    ledger = under_test.ledger

    @contextmanager
    def noted(task: Task, key: str) -> Iterator[None]:
        with ledger.run(task.name, key, task.request.id, task.request.retries):
            if lease := current_lease():
                ledger.note("fence", key, fence=lease.fence)
            yield

    def late(function: Any) -> None:
        name = f"{lock}.{function.__name__}"
        options = {"bind": True, "acks_late": True, "reject_on_worker_lost": True}
        under_test.app.task(name=name, shared=False, **options)(function)

    @late
    def late_held(self: Task, key: str, gate: str = "gate") -> str:
        with noted(self, key):
            ledger.wait_gate(gate)
            return key

    @late
    def late_slow(self: Task, key: str, seconds: float) -> str:
        with noted(self, key):
            time.sleep(seconds)
            return key

    @late
    def late_retries(self: Task, key: str, gate: str = "gate", countdown: float = 2) -> str:
        """Retries once, when the gate is opened."""
        with noted(self, key):
            ledger.wait_gate(gate)
            if self.request.retries == 0:
                raise self.retry(countdown=countdown)
            return key

    @late
    def late_kill_self(self: Task, key: str) -> str:
        """Kills its process the first time; ends well the second."""
        with noted(self, key):
            if len(ledger.runs(key)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return key
