"""The run gate: ``task_prerun`` decides, a ``before_start`` on each task's class carries it out.

``before_start`` runs inside the tracer's ``try``, so what it raises ends the run properly in every pool.
The tracer looks it up on the task's class when it is built, after ``worker_init``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from celery.app.task import Context, Task
from celery.exceptions import Ignore

from celery_dedupe import interrupts, messages
from celery_dedupe.core import counts, verdicts
from celery_dedupe.core.counts import Counted
from celery_dedupe.core.ticket import HEADER, Ticket, from_headers
from celery_dedupe.core.verdicts import Ending, Poison, Quiet, Raise, Refusal, Skip, Wait
from celery_dedupe.gates.desk import VERDICT, Desk, end_revoked
from celery_dedupe.gates.publish import pass_through
from celery_dedupe.guard import runs
from celery_dedupe.guard.runs import Run

logger = logging.getLogger("celery_dedupe")

ENDINGS: dict[str | None, Ending] = {"SUCCESS": "succeeded", "FAILURE": "failed", "IGNORED": "ignored"}


class RunGate:
    """Answers ``task_prerun`` and ``task_postrun``, and refuses in each task's ``before_start``.

    Arguments:
        eager: whether eager calls take locks (``dedupe_eager``). They are never sent again to wait.
    """

    def __init__(self, desk: Desk, eager: Callable[[], bool]) -> None:
        self._desk = desk
        self._eager = eager
        self._seams: list[tuple[Any, Any]] = []

    def attach(self) -> None:
        """Set the seam on the class that the app's tasks are made of.

        An eager call builds its tracer at once: in an app that nobody has finalized, or for a task that is
        defined afterwards, there is no later moment.
        """
        self._set_seam(self._desk.app.Task)

    def install(self) -> None:
        """Set the seam on every task class that has none: a base or ``before_start`` may be its own."""
        for task in list(self._desk.app.tasks.values()):
            self._set_seam(type(task))

    def _set_seam(self, cls: Any) -> None:
        if getattr(cls.before_start, "dedupe_seam", None) is not self:
            self._seams.append((cls, cls.__dict__.get("before_start")))
            cls.before_start = self._seam(cls.before_start)

    def uninstall(self) -> None:
        """Put every task class back as it was."""
        while self._seams:
            cls, original = self._seams.pop()
            if original is None:
                del cls.before_start
            else:
                cls.before_start = original

    def task_prerun(self, task: Task[Any, Any], task_id: str, **_: Any) -> None:
        """Receiver: take the run's locks and note the verdict on ``task.request``."""
        request = task.request
        if request.called_directly or (request.is_eager and not self._eager()):
            return
        found = from_headers(messages.headers_of(request))
        began = time.perf_counter()
        try:
            verdict = self._decide(task, request, found)
        except Exception as error:
            # The message is taken already; to refuse here would lose the task.
            logger.exception("%s[%s] runs without its locks", task.name, task_id)
            reason = f"{type(error).__name__}: {error}"
            self._desk.guard.reports.unprotected(task.name, task_id, "start", reason)
            self._desk.guard.reports.reached(task.name, task_id, "started")
            if found:
                # This run has nothing that would end it.
                self._desk.guard.withdraw(found.keys, task_id, slots=found.promised)
            return
        if verdict is not None:
            seconds = time.perf_counter() - began
            for word in _counted(verdict):
                self._desk.guard.reports.reached(task.name, task_id, word, seconds)
            # Celery 5.7 copies a request where a task calls itself; of one without headers it would take what
            # it does not know, our verdict, for headers of the message to send.
            request.headers = request.headers or {}
            setattr(request, VERDICT, verdict)

    def task_postrun(
        self, task: Task[Any, Any], state: str | None = None, retval: Any = None, **_: Any
    ) -> None:
        """Receiver: free what the run holds. A run that was refused holds nothing and frees nothing."""
        run = getattr(task.request, VERDICT, None)
        if isinstance(run, Run):
            runs.finish(self._desk.guard, run, _ending(run, state, retval))

    def _decide(self, task: Task[Any, Any], request: Context, found: Ticket | None) -> Run | Refusal | None:
        desk, name = self._desk, task.name
        policies = desk.policies(name, found.override if found else None)
        call = messages.requested(name, request, desk.signature(name))
        if found and len(found.keys) != len(policies):
            # The publisher had other rules: what it claimed is given back, this worker's rules count.
            desk.guard.withdraw(found.keys, call.task_id, slots=found.promised)
            found = replace(found, keys=(), slots=())
        if not policies:
            return None
        ticket = found or Ticket(generation=call.retries)
        if not ticket.keys:
            ticket = replace(ticket, keys=desk.keys(call, policies))
        elif moved := verdicts.moved(policies, ticket.keys):
            # They live in other stores by now, where this worker's runs meet: the claims are given back.
            old = [key for key in ticket.keys if key not in moved]
            desk.guard.withdraw(old, call.task_id, slots=ticket.promised)
            ticket = ticket.moved_to(moved)
        return runs.begin(
            desk.guard,
            call,
            policies,
            ticket,
            request.hostname or "",
            interrupts.of_this_thread,
            # A task that publishes itself under its own id, other than by a retry, has an older success.
            ended_well=lambda: (
                ticket.generation <= call.retries
                and messages.succeeded_before(task, request, ticket.waited + ticket.paced)
            ),
        )

    def _seam(self, original: Any) -> Any:
        def before_start(task: Task[Any, Any], task_id: str, args: Any, kwargs: Any) -> None:
            verdict = getattr(task.request, VERDICT, None)
            if isinstance(verdict, (Skip, Raise, Wait, Quiet, Poison)):
                self._carry_out(task, task_id, verdict)
            original(task, task_id, args, kwargs)

        before_start.dedupe_seam = self  # type: ignore[attr-defined]
        return before_start

    def _carry_out(self, task: Task[Any, Any], task_id: str, verdict: Refusal) -> None:
        request = task.request
        if isinstance(verdict, (Raise, Poison)):
            raise verdict.error
        if isinstance(verdict, Skip):
            why = f"duplicate of {verdict.duplicate.task_id}" if verdict.duplicate else verdict.reason
            if not request.is_eager:
                end_revoked(task.backend, request, why)
            raise Ignore(why)
        if isinstance(verdict, Wait) and request.is_eager and verdict.error is not None:
            raise verdict.error  # There is no message that could come back.
        if isinstance(verdict, Wait) and not request.is_eager:
            self._send_again(task, task_id, verdict)
        raise Ignore(verdict.reason)

    def _send_again(self, task: Task[Any, Any], task_id: str, verdict: Wait) -> None:
        request, ticket = task.request, verdict.ticket
        header = {HEADER: ticket.to_header()}
        try:
            pass_through(
                request,
                lambda: messages.sent_again(task, request, header, verdict.delay, ticket.serializer),
            )
        except BaseException:
            # It ends FAILURE with this error: its message may be acknowledged already.
            self._desk.guard.withdraw(ticket.keys, task_id, slots=ticket.promised)
            raise


def _counted(verdict: Run | Refusal) -> Iterator[Counted]:
    if not isinstance(verdict, Run):
        word = counts.counted(verdict)
    else:
        yield "started"
        # What would have been dropped would not have come here.
        word = None if verdict.ticket.observed else counts.would_be(verdict.would_be)
    if word:
        yield word


def _ending(run: Run, state: str | None, retval: Any) -> Ending:
    if state == "RETRY":
        # ``raise Retry()`` by hand sends nothing, so nothing will come back for the claim.
        return "failed" if run.retry_in is None else "retried"
    if state == "REJECTED":
        return "requeued" if getattr(retval, "requeue", False) else "failed"
    return ENDINGS.get(state, "unknown")
