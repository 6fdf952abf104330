"""What both gates share: the extension as they see it, and the verdict on the task that runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from celery import Celery
from celery._state import get_current_worker_task
from celery.backends.base import Backend
from celery.exceptions import TaskRevokedError
from celery.states import REVOKED

from celery_dedupe import messages
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.ticket import from_headers
from celery_dedupe.guard import Guard
from celery_dedupe.guard.runs import Run
from celery_dedupe.heartbeat import Lease

VERDICT = "dedupe_verdict"  # the attribute of ``task.request`` that holds a Run or a Refusal


class Desk(Protocol):
    """What the gates ask of the extension that owns them."""

    app: Celery

    @property
    def guard(self) -> Guard:
        """What claims, runs and ends act through."""

    def policies(self, task: str, override: Any = None) -> tuple[Policy, ...]:
        """The task's policies, with a call's own ``dedupe=`` option laid over them."""

    def signature(self, task: str) -> Any:
        """The signature that callers of the task see; ``None`` where the task is unknown here."""

    def keys(self, call: Any, policies: Sequence[Policy]) -> tuple[str, ...]:
        """One key a policy, made of the call's arguments."""


def keys_of(desk: Desk, task: str, headers: Mapping[str, Any] | None, request: Any = None) -> tuple[str, ...]:
    """The keys of a message: its ticket's, else those that the process which runs it makes of ``request``."""
    ticket = from_headers(headers)
    if ticket is not None or request is None:
        return ticket.keys if ticket else ()
    call = messages.requested(task, request, desk.signature(task))
    return desk.keys(call, desk.policies(task))


def current_run() -> Run | None:
    """The run under whose body this code is called, if it was let through by a policy."""
    task = get_current_worker_task()
    verdict = getattr(task.request, VERDICT, None) if task else None
    return verdict if isinstance(verdict, Run) else None


def current_lease() -> Lease | None:
    """The lease of the task that runs here: its ``key``, ``fence``, ``expires_in`` and ``lost``.

    ``None`` outside a task, and in one that holds no running lock: no rule, a lock without one, or the store
    was away at its start. Of several running locks the first one's, in the order of the rule's list.
    """
    run = current_run()
    return run.leases[0] if run and run.leases else None


def end_revoked(backend: Backend, request: Any, why: str) -> None:
    """End a message REVOKED, and tell whatever waits for it: the rest of a chain, a chord, errbacks."""
    reason = TaskRevokedError(why)
    stored = not request.ignore_result
    backend.mark_as_failure(request.id, reason, request=request, store_result=stored, state=REVOKED)


def claimed_by(keys: Sequence[str], run: Run | None) -> str:
    """Id of the run from within which a call is made, if it holds one of the call's keys; else ``""``."""
    if run is None or set(keys).isdisjoint(run.ticket.keys):
        return ""
    return run.call.task_id
