"""The ends that only a signal outside the task's own process tells of: claims are given back here.

``task_postrun`` ends a run where it ran (``gates/run.py``). These end what never ran, or was killed:

| signal | sent by | meaning |
|---|---|---|
| ``task_revoked`` | the parent | revoked or expired before its start; or terminated |
| ``heartbeat_sent`` | the parent | every 2 s; by then it may know of a revocation |
| ``task_failure`` | the parent | child lost (``WorkerLostError``), hard time limit (Celery 5.7) |
| ``task_retry`` | the parent | cancelled by a cold shutdown or a lost connection to the broker |
| ``task_internal_error`` | the child | the tracer itself failed |
| ``task_unknown``, ``task_rejected`` | the parent | not registered, not decodable |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.app.task import Task
from celery.utils.functional import maybe_list
from celery.worker import state as worker_state
from celery.worker.request import Request

from celery_dedupe import messages
from celery_dedupe.core.ticket import from_headers
from celery_dedupe.core.verdicts import longest_wait
from celery_dedupe.gates.desk import Desk, current_run, keys_of

logger = logging.getLogger("celery_dedupe")

KILLED = (WorkerLostError, TimeLimitExceeded, Terminated)


class Endings:
    """Gives back what a task holds when its own process cannot."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # task_failure carries no request, and Celery forgets its own before it sends the signal.
        self._received: WeakValueDictionary[str, Request] = WeakValueDictionary()
        self._revoked: WeakSet[Request] = WeakSet()

    def task_received(self, request: Request, **_: Any) -> None:
        """Remember the request of a task that may hold locks, for as long as the worker itself does."""
        ticket = from_headers(request.request_dict)
        if self._desk.policies(request.task.name) or ticket:
            self._received[request.id] = request
        if ticket and (told := longest_wait(ticket)):
            messages.start_within(request, told)

    def received(self) -> list[Request]:
        """The requests that this worker has, waiting or running, of tasks that may hold locks."""
        return list(self._received.values())

    def task_revoked(self, sender: Task[Any, Any], request: Any, terminated: bool, **_: Any) -> None:
        """It will not run. Slots go only if it was terminated: another worker may run a copy of it."""
        self._give_back(sender.name, request.id, messages.headers_of(request), request, running=terminated)

    def heartbeat_sent(self, **_: Any) -> None:
        """Give back what messages hold that are revoked, or expired, before their time has come.

        Only then Celery sends ``task_revoked``. With ``--without-heartbeat`` such a claim lives until then.
        """
        for request in list(self._received.values()):
            gone = _is_revoked(request) or messages.has_expired(request)
            if gone and request not in self._revoked:
                self._revoked.add(request)
                if request not in worker_state.active_requests:
                    self._give_back(request.name, request.id, request.request_dict, request, running=False)

    def task_failure(self, sender: Task[Any, Any], task_id: str, exception: BaseException, **_: Any) -> None:
        """Its process was killed; an ordinary failure is ended by ``task_postrun`` where it ran."""
        request = self._received.get(task_id)
        if request is not None and isinstance(exception, KILLED) and current_run() is None:
            self._give_back(sender.name, task_id, request.request_dict, request, running=True)

    def task_retry(self, sender: Task[Any, Any], request: Any, reason: object = None, **_: Any) -> None:
        """Its process was killed as the worker shut down, if no reason is given: a real retry has one.

        Acknowledged late, its message comes back. Acknowledged early, it is gone, whatever its state says.
        """
        if reason is None and not sender.acks_late:
            self._give_back(sender.name, request.id, messages.headers_of(request), request, running=True)

    def task_internal_error(self, sender: Task[Any, Any], task_id: str, request: Any, **_: Any) -> None:
        """The tracer failed after ``task_postrun``: nothing will come back for a claim kept in the queue."""
        self._give_back(sender.name, task_id, request, None, running=False)

    def task_unknown(self, message: Any, name: str, **named: Any) -> None:
        """No such task here."""
        self._give_back(name, named["id"], message.headers, None, running=False)

    def task_rejected(self, message: Any, **_: Any) -> None:
        """A message that is no task, or cannot be decoded; its headers may tell whose it was."""
        headers = message.headers or {}
        if headers.get("id"):
            self._give_back(headers.get("task", ""), headers["id"], headers, None, running=False)

    def _give_back(
        self, task: str, task_id: str, headers: Mapping[str, Any] | None, request: Any, *, running: bool
    ) -> None:
        try:
            keys = keys_of(self._desk, task, headers, request)
            ticket = from_headers(headers)
            slots = ticket.promised if ticket else {}
            self._desk.guard.withdraw(keys, task_id, running=running, slots=slots)
        except Exception:
            logger.exception("%s[%s]: its claim was not given back and will run out by itself", task, task_id)


def _is_revoked(request: Any) -> bool:
    """What Celery asks of it when its time has come."""
    if request.id in worker_state.revoked:
        return True
    stamps = worker_state.revoked_stamps
    return any(
        stamp in maybe_list(stamps[name])
        for name in request.stamped_headers
        if name in stamps
        for stamp in maybe_list(request.stamps[name])
    )
