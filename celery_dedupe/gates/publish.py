"""The publish gate: ``before_task_publish`` decides, ``app.send_task`` carries it out.

``send_task`` is the one door of every publish: ``delay``, canvas, beat, ``retry``, ``replace``, by name.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from celery.app.task import Context

from celery_dedupe import messages
from celery_dedupe.core.counts import Counted
from celery_dedupe.core.policy import Policy, portable
from celery_dedupe.core.ticket import HEADER, Ticket, from_headers
from celery_dedupe.gates.desk import VERDICT, Desk, claimed_by, current_run, end_as_duplicate, refusal
from celery_dedupe.gates.results import SecondResults
from celery_dedupe.guard import claims
from celery_dedupe.guard.claims import Drop
from celery_dedupe.guard.runs import Run

logger = logging.getLogger("celery_dedupe")


@dataclass(slots=True)
class _Publishing:
    """One ``send_task`` under way, as the signal's receiver sees it.

    ``promised``: somebody holds this id already, since a canvas froze it or a task replaces itself.
    ``attended``: the program that calls gets the answer. A group's members, later links and callbacks are
    published by Celery itself, where an error would end a task that has run well, or cut a group in half.
    ``counted``: what is to be counted once it has gone out.
    """

    gate: PublishGate
    policies: Sequence[Policy]
    override: Any = None
    promised: bool = False
    attended: bool = True
    serializer: str = ""
    retry_of: Run | None = None
    task_id: str = ""
    claimed: tuple[str, ...] = ()
    counted: tuple[Counted, ...] = ()


class _Dropped(BaseException):
    """Leaves ``send_task`` through Celery's own code: an ``Exception`` would be swallowed by the signal."""

    def __init__(
        self, publishing: _Publishing, why: Drop | Exception, request: Context | None = None
    ) -> None:
        super().__init__()
        self.publishing = publishing
        self.why = why
        self.request = request


_publishing: ContextVar[_Publishing | None] = ContextVar("celery_dedupe_publishing", default=None)
_passing: ContextVar[Context | None] = ContextVar("celery_dedupe_passing", default=None)


def pass_through(request: Context, publish: Any) -> None:
    """Call ``publish`` so that the message of ``request`` goes out again as it is, ticket and all."""
    token = _passing.set(request)
    try:
        publish()
    finally:
        _passing.reset(token)


class PublishGate:
    """Shadows ``app.send_task`` and answers ``before_task_publish``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shadowed = desk.app.__dict__.get("send_task")
        self._seconds = SecondResults()

    def send_task(self, name: str, *args: Any, dedupe: Any = None, **options: Any) -> Any:
        """``Celery.send_task`` with one more option, the call's own ``dedupe``."""
        again = _passing.get()
        passes = again is not None and again.id == options.get("task_id")
        publishing = None if passes else self._publishing(name, dedupe, options)
        # Set even to None: this may be a publish from within a receiver of another publish.
        token = _publishing.set(publishing)
        try:
            sent = self._send_task(name, *args, **options)
        except _Dropped as error:
            if error.publishing is not publishing:
                raise
            dropped = error.with_traceback(None)
        except BaseException:
            if publishing is not None and publishing.claimed:
                self._desk.guard.withdraw(publishing.claimed, publishing.task_id)
            raise
        else:
            for word in publishing.counted if publishing is not None else ():
                self._desk.guard.reports.count(name, word)
            return sent
        finally:
            _publishing.reset(token)
        # Out here, so that what the caller is told has nothing of ours behind it.
        return self._answer(dropped, options)

    def before_task_publish(self, sender: str, body: Any, headers: dict[str, Any], **_: Any) -> None:
        """Receiver: claim the call and write its ticket into ``headers``, or leave by ``_Dropped``."""
        publishing, again = _publishing.get(), _passing.get()
        if publishing is None and again is not None and again.id == headers.get("id"):
            # Celery takes the run that sends it for its parent.
            headers["parent_id"] = again.parent_id
        if publishing is None or publishing.gate is not self or publishing.task_id:
            return
        try:
            outcome = self._decide(publishing, sender, body, headers)
        except Exception as error:  # noqa: BLE001 - whatever it is is the caller's; a signal would log it and publish
            raise _Dropped(publishing, error) from None
        if outcome is not None:
            self._desk.guard.reports.count(sender, "dropped")
            raise _Dropped(publishing, outcome, messages.context(body, headers))

    def _send_task(self, *args: Any, **options: Any) -> Any:
        # Looked up late: a tracer may have patched the class after ``init_app``.
        app = self._desk.app
        send = self._shadowed or partial(type(app).send_task, app)
        return send(*args, **options)

    def _publishing(self, name: str, override: Any, options: dict[str, Any]) -> _Publishing | None:
        task = self._desk.app.current_worker_task
        task_id = options.get("task_id")
        if (
            task is not None
            and task_id == task.request.id
            and options.get("retries", 0) > task.request.retries
        ):
            # A retry goes on under the terms of its run, which the message's own header carries.
            run = getattr(task.request, VERDICT, None)
            return _Publishing(self, run.policies, retry_of=run) if isinstance(run, Run) else None
        policies = self._desk.policies(name, override)
        if not policies and override is None:
            return None
        # A chain in a group, and on older Celery a chord's body, have nothing but what freezing gave them.
        frozen = task_id and options.get("reply_to")
        within = any(options.get(name) for name in ("parent_id", "root_id", "group_id"))
        within = within or bool(frozen and (task or not options.get("add_to_parent", True)))
        serializer = messages.serializer_of(self._desk.app, name, options)
        return _Publishing(self, policies, override, bool(task_id and within), not within, serializer)

    def _decide(self, publishing: _Publishing, name: str, body: Any, headers: dict[str, Any]) -> Drop | None:
        desk, policies, run = self._desk, publishing.policies, publishing.retry_of
        call = messages.published(name, body, headers, desk.signature(name))
        publishing.task_id = call.task_id
        nonce = secrets.token_hex(4)
        if run is not None:
            # Never its own duplicate: the run still holds its slots, and its end puts them back in the queue.
            run.retry_in = call.eta_in
            ticket = replace(
                run.ticket, generation=run.ticket.generation + 1, nonce=nonce, waits=0, waited=0.0
            )
            publishing.claimed = claims.claim_retry(desk.guard, call, policies, ticket)
            headers[HEADER] = ticket.to_header()
            return None
        publishing.promised = publishing.promised or call.workflow
        publishing.counted = ("published",) if policies else ()
        try:
            keys = desk.keys(call, policies)
        except Exception as error:
            if publishing.attended and not all(policy.observe for policy in policies):
                raise
            # Nobody is there to mend it: a link of a chain would fail the task it follows.
            logger.exception("%s[%s] is published without a claim", name, call.task_id)
            reason = f"{type(error).__name__}: {error}"
            desk.guard.reports.unprotected(name, call.task_id, "publish", reason)
            headers.pop(HEADER, None)  # One that came along with other headers is another message's.
            return None
        inside = current_run()
        ticket = Ticket(
            keys,
            nonce,
            portable(publishing.override),
            generation=_generation(call.task_id, headers, inside),
            workflow=publishing.promised,
            serializer=publishing.serializer,
        )
        ticket = replace(ticket, successor_of=claimed_by(ticket, inside))
        outcome = claims.claim(desk.guard, call, policies, ticket, attended=publishing.attended)
        if isinstance(outcome, Drop):
            if not outcome.observed:
                return outcome
            ticket = replace(ticket, observed=True)
            publishing.counted = ("published", "would_drop")
        publishing.claimed = ticket.keys if outcome else ()
        headers[HEADER] = ticket.to_header()
        return None

    def _answer(self, dropped: _Dropped, options: dict[str, Any]) -> Any:
        """What the caller of a dropped publish gets. Nothing of the publish is left behind."""
        app, publishing, why = self._desk.app, dropped.publishing, dropped.why
        # Celery subscribes to the new id's result before it asks its receivers.
        consumer = getattr(app.backend, "result_consumer", None)
        if consumer is not None and publishing.task_id:
            consumer.cancel_for(publishing.task_id)
        if isinstance(why, Exception):
            raise why
        found = why.duplicate
        if options.get("task_id") not in (None, found.task_id) and dropped.request is not None:
            # Whoever has chosen the id may wait for it.
            end_as_duplicate(app.backend, dropped.request, found)
        if why.policy.on_duplicate == "raise" and publishing.attended:
            raise refusal(found)
        if why.policy.on_duplicate == "none":
            return None
        result = (options.get("result_cls") or app.AsyncResult)(found.task_id)
        return self._seconds.mark(result, found)


def _generation(task_id: str, headers: Mapping[str, Any], inside: Run | None) -> int:
    """One more than that of the message this one follows under its task id; 0 if it is the first.

    A task that replaces itself is inside its predecessor. Where the parent process retries for a lost child
    (``retry_on_worker_lost``, Celery 5.7) the predecessor's ticket is among the headers.
    """
    if inside is not None and inside.call.task_id == task_id:
        return inside.ticket.generation + 1
    earlier = from_headers(headers)
    return earlier.generation + 1 if earlier else 0
