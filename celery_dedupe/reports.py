"""Everything a person sees of the guard's work: one log line and one event for each thing that happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from celery_dedupe import signals
from celery_dedupe.core.call import Call
from celery_dedupe.core.counts import Counted
from celery_dedupe.core.verdicts import Duplicate, Ending, Poison, Quiet, Refusal, Skip, Wait
from celery_dedupe.heartbeat import Lease

logger = logging.getLogger("celery_dedupe")


class Reports:
    """Tells of claims, runs and ends.

    Arguments:
        app: the sender of events.
        count: is told what is to be counted, and of which task.
    """

    def __init__(self, app: Any, count: Callable[[str, Counted], None]) -> None:
        self._app = app
        self._count = count

    def reached(self, task: str, task_id: str, verdict: Counted, seconds: float | None = None) -> None:
        """A publish or a start has its verdict, or something befell it: counted, and told in a word."""
        self._count(task, verdict)
        event = signals.VerdictReached(task, task_id, verdict, seconds)
        signals.emit(signals.verdict_reached, self._app, event)

    def dropped(self, call: Call, lock: str, found: Duplicate, *, published: bool) -> None:
        """A publish is a duplicate of ``found``; ``published``: it goes out all the same."""
        _log_duplicate(
            f"{'published all the same' if published else 'not published'}: duplicate", call, found
        )
        event = signals.PublishDropped(call.task, call.task_id, lock, found, published)
        signals.emit(signals.publish_dropped, self._app, event)

    def refused(self, call: Call, verdict: Refusal, *, observed: bool) -> None:
        """A start was refused; ``observed``: it goes on all the same."""
        found = None if isinstance(verdict, (Quiet, Poison)) else verdict.duplicate
        delay = verdict.delay if isinstance(verdict, Wait) else 0.0
        reason = "duplicate" if isinstance(verdict, Skip) else verdict.reason
        decision: Any = type(verdict).__name__.lower()
        what = f"would {decision}" if observed else decision
        what = f"{what} {delay:.1f} s" if delay else what
        if found:
            _log_duplicate(f"{what}: {reason}", call, found)
        else:
            level = logging.ERROR if isinstance(verdict, Poison) else logging.INFO
            logger.log(level, "%s[%s] %s: %s", call.task, call.task_id, what, reason)
        event = signals.RunRefused(call.task, call.task_id, decision, found, delay, reason, observed)
        signals.emit(signals.run_refused, self._app, event)

    def taken(
        self,
        call: Call,
        stage: Literal["queued", "running"],
        keys: tuple[str, ...],
        fences: Sequence[int] = (),
    ) -> None:
        """Locks were granted."""
        event = signals.LockTaken(call.task, call.task_id, stage, keys, tuple(fences))
        signals.emit(signals.lock_taken, self._app, event)

    def released(self, call: Call, keys: tuple[str, ...], ending: Ending) -> None:
        """A run has ended and gives up its locks."""
        event = signals.LockReleased(call.task, call.task_id, keys, ending)
        signals.emit(signals.lock_released, self._app, event)

    def lost(self, lease: Lease) -> None:
        """A lease ended under its run."""
        logger.warning(
            "%s[%s] lost its lease on %s while it runs: another run may overlap it",
            lease.task, lease.task_id, lease.key,
        )  # fmt: skip
        self.reached(lease.task, lease.task_id, "lease_lost")
        event = signals.LostLease(lease.task, lease.task_id, lease.key, lease.fence)
        signals.emit(signals.lease_lost, self._app, event)

    def ended_without(self, call: Call, key: str, ending: Ending) -> None:
        """A run has ended whose slot was no longer its own."""
        logger.warning(
            "%s[%s] ended (%s) after it lost its lease on %s: another run may have overlapped it",
            call.task, call.task_id, ending, key,
        )  # fmt: skip

    def unprotected(self, task: str, task_id: str, stage: Literal["publish", "start"], reason: str) -> None:
        """A task goes on without its locks."""
        self.reached(task, task_id, "unprotected")
        signals.emit(signals.ran_unprotected, self._app, signals.RanUnprotected(task, task_id, stage, reason))


def _log_duplicate(what: str, call: Call, found: Duplicate) -> None:
    left = "for ever" if found.expires_in is None else f"for {found.expires_in:.1f} s unless renewed"
    logger.info(
        "%s[%s] %s; %s is %s and holds %s %s",
        call.task, call.task_id, what, found.task_id, found.state, found.key, left,
    )  # fmt: skip
