"""What happens, told to whoever listens: blinker signals, each with one frozen object::

    from celery_dedupe.signals import publish_dropped

    @publish_dropped.connect
    def count(app, event): ...

The sender is the Celery app. A receiver that raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from blinker import NamedSignal, Namespace

from celery_dedupe.core.counts import Counted
from celery_dedupe.core.verdicts import Duplicate

logger = logging.getLogger("celery_dedupe")
Signal = NamedSignal
_namespace = Namespace()

publish_dropped = _namespace.signal("publish-dropped", "A publish was a duplicate; gets PublishDropped.")
run_refused = _namespace.signal("run-refused", "A run may not start now; gets RunRefused.")
lock_taken = _namespace.signal("lock-taken", "A claim or running slots were granted; gets LockTaken.")
lock_released = _namespace.signal("lock-released", "A run gave up its locks; gets LockReleased.")
lease_lost = _namespace.signal("lease-lost", "A running lease ended under its run; gets LostLease.")
ran_unprotected = _namespace.signal(
    "ran-unprotected", "The task went on without its locks; gets RanUnprotected."
)
verdict_reached = _namespace.signal(
    "verdict-reached", "A publish or a start has its verdict, or something befell it; gets VerdictReached."
)


@dataclass(frozen=True, slots=True)
class PublishDropped:
    """A publish was a duplicate of ``duplicate.task_id``.

    Attributes:
        task, task_id: of the call that was turned away.
        lock: the policy's lock.
        observed: it went out all the same (``observe`` mode, or others wait for this very message).
    """

    task: str
    task_id: str
    lock: str
    duplicate: Duplicate
    observed: bool


@dataclass(frozen=True, slots=True)
class RunRefused:
    """A run was kept from starting.

    Attributes:
        decision: ``"skip"`` (ends REVOKED), ``"raise"`` (ends FAILURE), ``"wait"`` (comes back in ``delay``
            seconds), ``"quiet"`` (another copy of the same message did the work) or ``"poison"`` (ends
            FAILURE with ``DeliveryLimitExceeded``).
        duplicate: who is in the way; ``None`` where it is the task itself, or the store does not answer.
        observed: it ran all the same (``observe`` mode).
    """

    task: str
    task_id: str
    decision: Literal["skip", "raise", "wait", "quiet", "poison"]
    duplicate: Duplicate | None
    delay: float
    reason: str
    observed: bool


@dataclass(frozen=True, slots=True)
class LockTaken:
    """Locks were granted: queued claims at a publish (``fences`` empty), running slots at a start."""

    task: str
    task_id: str
    stage: Literal["queued", "running"]
    keys: tuple[str, ...]
    fences: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LockReleased:
    """A run ended and gave up its locks. ``outcome`` is how it ended, e.g. ``"succeeded"``."""

    task: str
    task_id: str
    keys: tuple[str, ...]
    outcome: str


@dataclass(frozen=True, slots=True)
class LostLease:
    """The slot under ``key`` is no longer this run's, and its body is still at work."""

    task: str
    task_id: str
    key: str
    fence: int


@dataclass(frozen=True, slots=True)
class RanUnprotected:
    """The task was published or started without its locks. ``reason`` says why."""

    task: str
    task_id: str
    stage: Literal["publish", "start"]
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictReached:
    """What became of a publish or a start, in one word: all that is counted, as it happens.

    Attributes:
        verdict: a word of docs/metrics.md, such as ``"published"``, ``"dropped"``, ``"started"``.
        seconds: how long it took to decide, the claim store included; ``None`` where nothing was decided.
    """

    task: str
    task_id: str
    verdict: Counted
    seconds: float | None


def emit(signal: Signal, app: Any, event: object) -> None:
    """Tell every receiver; none can stop the others or the caller."""
    if not signal.receivers:
        return
    for receiver in signal.receivers_for(app):
        try:
            receiver(app, event=event)
        except Exception:  # noqa: PERF203 - one receiver's error must not keep the next from being told
            logger.exception("A receiver of %s raised; the task goes on", signal.name)
