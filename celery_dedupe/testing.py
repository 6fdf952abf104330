"""For tests of code that is under rules: claims in memory, and a clock that the test turns::

    pytest_plugins = ["celery_dedupe.testing"]  # in the topmost conftest.py

The only module that imports pytest. It has no assert statement to rewrite: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_dedupe import signals
from celery_dedupe.core.durations import Duration, seconds
from celery_dedupe.core.verdicts import Duplicate
from celery_dedupe.errors import DuplicateTask
from celery_dedupe.extension import ATTRIBUTE, Dedupe
from celery_dedupe.gates.results import duplicate_of
from celery_dedupe.store.memory import MemoryStore

LOOKS, PAUSE = 500, 0.01  # seconds between looks at what a worker in another thread is about to do


class Clock:
    """The store's clock, in microseconds. It stands still, but for one at each look, unless it is turned."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def turn(self, by: Duration) -> None:
        """Let this much time pass: seconds, a ``timedelta`` or a text such as ``"2h"``."""
        self.now += int(seconds(by) * 1_000_000)


class Locks:
    """What the fixture ``dedupe`` gives: the locks of the app under test.

    Attributes:
        clock: the store's; ``clock.turn("2h")`` lets time pass there. Celery's own clocks do not heed it.
    """

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self.clock = clock
        self._store = store
        self._refused: dict[str, signals.RunRefused] = {}

    def assert_dropped(self, result: Any) -> Duplicate:
        """Fail unless the call that gave ``result`` was a duplicate, and return what was in its way.

        It was dropped at its publish, or turned away at its start, or, if eager, would have had to wait. What
        a worker has yet to decide is waited for.
        """
        __tracebackhide__ = True
        if result is None:
            pytest.fail("the call returned None, which tells nothing of what was in its way")
        _soon(lambda: self._duplicate(result) or result.ready())
        found = self._duplicate(result)
        if found is None:
            pytest.fail(f"the call {result.id} was not dropped, it is {result.state}; {self._account()}")
        return found

    def assert_claimed(self, result: Any) -> None:
        """Fail unless the call that gave ``result`` holds a lock: it is queued, or runs, or is remembered."""
        __tracebackhide__ = True
        found = duplicate_of(result)
        if found is not None:
            pytest.fail(f"the call was dropped as a duplicate of {found.task_id}, which is {found.state}")
        if not any(task_id == result.id for _, task_id, _ in self._held()):
            pytest.fail(f"the call {result.id} holds no lock; {self._account()}")

    def no_locks_left(self) -> None:
        """Fail if anything that is queued or runs holds a lock. A worker is given time to free its last.

        What ``once`` remembers does not count. What ``until_expired`` has claimed does, to the period's end.
        """
        __tracebackhide__ = True
        if not _soon(lambda: all(state == "done" for state, _, _ in self._held())):
            pytest.fail(self._account())

    def _duplicate(self, result: Any) -> Duplicate | None:
        refused = self._refused.get(result.id)
        if refused is None:
            return duplicate_of(result)
        # To wait is no refusal, but of an eager call, which cannot come back.
        waits = refused.decision == "wait" and not isinstance(result.result, DuplicateTask)
        return None if waits else refused.duplicate

    def _note(self, app: Any, event: signals.RunRefused) -> None:
        self._refused[event.task_id] = event

    def _held(self) -> list[tuple[str, str, str]]:
        """State, task id and key of all that holds a lock."""
        return [
            (holder.state, holder.task_id, key)
            for key, record in self._store.scan("*")
            for state in ("queued", "running", "done")
            for holder in record.holders((state,), self._store.clock())
        ]

    def _account(self) -> str:
        held = [f"{key} by {task_id}, which is {state}" for state, task_id, key in self._held()]
        return "\n".join(["these locks are held:", *held]) if held else "no lock is held"


@pytest.fixture
def dedupe(celery_app: Any) -> Iterator[Locks]:
    """The locks of the app that the fixture ``celery_app`` gives, which is Celery's own or the project's.

    For the test its claims are in memory, ``dedupe_mode`` is ``"enforce"``, and eager calls take locks.
    """
    attached = hasattr(celery_app, ATTRIBUTE)
    if not attached and any(task.__trace__ for task in celery_app._tasks.values()):
        pytest.fail("a worker of celery_app runs already: name the fixture dedupe before celery_worker")
    extension = Dedupe(celery_app).init_app()
    clock = Clock()
    store = MemoryStore(clock)
    locks = Locks(store, clock)
    everywhere = dict.fromkeys(extension.store_names(), store)
    with extension.reconfigured(
        stores=everywhere, client=None, url=None, store_options={}, mode="enforce", eager=True
    ):
        signals.run_refused.connect(locks._note, sender=extension.app)  # weak: it goes when locks goes
        yield locks
    if not attached:
        extension.close()


def _soon(condition: Callable[[], object]) -> object:
    # Counts instead of looking at a clock: tests may have stopped it.
    for _ in range(LOOKS):
        if found := condition():
            return found
        time.sleep(PAUSE)
    return condition()
