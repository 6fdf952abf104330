"""Tasks for tests. Each body writes its start and its end to the ledger, under the key that it was given."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from tests.harness.ledger import Ledger


class Flaky(Exception):
    """What a task fails with that would do better next time."""


class Unpicklable(Exception):
    """Cannot be pickled, so it cannot leave the process as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def define_tasks(app: Celery, ledger: Ledger, module: str = "jobs") -> SimpleNamespace:
    """Registers the tasks as ``MODULE.NAME`` on this app alone, and returns them as ``.NAME``."""
    tasks: dict[str, Any] = {}

    def job(**options: Any) -> Any:
        def register(function: Any) -> Any:
            name = function.__name__
            tasks[name] = app.task(shared=False, name=f"{module}.{name}", **{"bind": True, **options})(
                function
            )
            return tasks[name]

        return register

    def noted(task: Task, key: object) -> AbstractContextManager[None]:
        return ledger.run(task.name, key, task.request.id, task.request.retries)

    _define_ends(job, noted, ledger)
    _define_retries(job, noted)
    _define_faults(job, noted, ledger)
    _define_workflow(job, noted, ledger)
    return SimpleNamespace(**tasks)


def _define_ends(job: Any, noted: Any, ledger: Ledger) -> None:
    @job()
    def quick(self: Task, key: str, value: Any = None) -> Any:
        """Ends at once. Returns the value, or the key."""
        with noted(self, key):
            return key if value is None else value

    @job()
    def slow(self: Task, key: str, seconds: float = 1.0) -> str:
        """Runs for so long."""
        with noted(self, key):
            time.sleep(seconds)
            return key

    @job()
    def held(self: Task, key: str, gate: str = "gate") -> str:
        """Runs until the test says ``ledger.open_gate(gate)``, for a minute at most."""
        with noted(self, key):
            ledger.wait_gate(gate)
            return key

    @job()
    def fails(self: Task, key: str) -> None:
        with noted(self, key):
            raise ValueError(f"{key} is bound to fail")

    @job()
    def fails_unpicklably(self: Task, key: str) -> None:
        with noted(self, key):
            raise Unpicklable(key)

    @job()
    def ignores(self: Task, key: str) -> None:
        with noted(self, key):
            raise Ignore()

    @job(acks_late=True)
    def rejects(self: Task, key: str, times: int = 1, requeue: bool = True) -> str:
        """Rejects its message so many times, counted by the ledger, then ends well. Acknowledges late."""
        with noted(self, key):
            if len(ledger.runs(key)) <= times:
                raise Reject("not now", requeue=requeue)
            return key


def _define_retries(job: Any, noted: Any) -> None:
    @job(max_retries=3)
    def retries(self: Task, key: str, failures: int = 1, countdown: float = 0) -> str:
        """Calls ``self.retry`` so many times, then ends well. Up after three: raises ``Flaky``."""
        with noted(self, key):
            if self.request.retries < failures:
                raise self.retry(exc=Flaky(key), countdown=countdown)
            return key

    @job(autoretry_for=(Flaky,), max_retries=3, default_retry_delay=0.1)
    def autoretries(self: Task, key: str, failures: int = 1) -> str:
        """Raises ``Flaky``, which ``autoretry_for`` names, so many times, then ends well. Up after three."""
        with noted(self, key):
            if self.request.retries < failures:
                raise Flaky(key)
            return key


def _define_faults(job: Any, noted: Any, ledger: Ledger) -> None:
    @job()
    def hang(self: Task, key: str, seconds: float = 3600.0, hold_gil: bool = True) -> str:
        """In C code that no signal but SIGKILL gets it out of; no other thread runs if it holds the GIL."""
        with noted(self, key):
            _deadlock(seconds, hold_gil)
            return key

    @job()
    def kill_self(self: Task, key: str, times: int = 1) -> str:
        """Sends SIGKILL to its own process so many times, counted by the ledger, then ends well."""
        with noted(self, key):
            if len(ledger.runs(key)) <= times:
                os.kill(os.getpid(), signal.SIGKILL)
            return key


def _define_workflow(job: Any, noted: Any, ledger: Ledger) -> None:
    @job()
    def append(self: Task, values: Any, key: str) -> list[Any]:
        """A link of a chain, or a callback: the parent's values, and its own key after them."""
        with noted(self, key):
            return [*(values if isinstance(values, list) else [values]), key]

    @job()
    def gather(self: Task, values: list[Any], key: str) -> list[Any]:
        """The body of a chord: all values, sorted."""
        with noted(self, key):
            return sorted(values)

    @job(bind=False)  # a bound errback is sent as a task of its own, with nothing but the failed one's id
    def record_error(request: Any, error: Any, traceback: Any, key: str = "error") -> None:
        """An errback: notes ``error`` with the failed task's id and the name of what it raised."""
        ledger.note("error", key, task_id=request.id, error=type(error).__name__)

    @job()
    def successor(self: Task, key: str, left: int = 1, countdown: float | None = None) -> int:
        """Publishes its own next run from inside until none is left; notes ``published`` with its id."""
        with noted(self, key):
            if left > 0:
                following = self.apply_async((key, left - 1, countdown), countdown=countdown)
                ledger.note("published", key, task_id=following.id)
            return left

    @job()
    def publishes(self: Task, key: str, name: str, args: list[Any]) -> str:
        """Publishes a task by name from inside; returns the id of what it got."""
        with noted(self, key):
            return self.app.send_task(name, args).id

    @job()
    def replaces(self: Task, key: str, name: str, args: list[Any]) -> None:
        """Lets another task take its place."""
        with noted(self, key):
            raise self.replace(self.app.signature(name, args))


def _deadlock(seconds: float, hold_gil: bool) -> None:
    library = (ctypes.PyDLL if hold_gil else ctypes.CDLL)(None)
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    until = time.time() + seconds
    deadline = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_timedlock(mutex, deadline)
