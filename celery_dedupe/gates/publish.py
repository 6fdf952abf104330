"""The publish gate: ``app.send_task`` asks first, and ``before_task_publish`` writes the ticket.

``send_task`` is the one door of every publish: ``delay``, canvas, beat, ``retry``, ``replace``, by name.
It decides before Celery builds a message and subscribes to its result, neither of which a duplicate needs.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.utils import uuid

from celery_dedupe import messages
from celery_dedupe.core.call import Call
from celery_dedupe.core.counts import Counted
from celery_dedupe.core.policy import Policy, portable
from celery_dedupe.core.ticket import HEADER, Ticket, from_headers
from celery_dedupe.core.verdicts import refusal
from celery_dedupe.gates.desk import VERDICT, Desk, claimed_by, current_run, end_revoked
from celery_dedupe.gates.results import SecondResults
from celery_dedupe.guard import claims
from celery_dedupe.guard.claims import Drop
from celery_dedupe.guard.runs import Run

logger = logging.getLogger("celery_dedupe")

Headers = Mapping[str, Any]


@dataclass(slots=True)
class _Publishing:
    """One ``send_task`` under way that policies speak for.

    ``promised``: somebody holds this id already, since a canvas froze it or a task replaces itself.
    ``attended``: the program that calls gets the answer. A group's members, later links and callbacks are
    published by Celery itself, where an error would end a task that has run well, or cut a group in half.
    ``headers``: what the message gets of ours.
    ``counted``: what is to be counted once it has gone out. ``seconds``: what the decision took.
    """

    policies: Sequence[Policy]
    override: Any = None
    promised: bool = False
    attended: bool = True
    retry_of: Run | None = None
    claimed: tuple[str, ...] = ()
    headers: Headers | None = None
    counted: tuple[Counted, ...] = ()
    seconds: float = 0.0


# The headers of ours that the next message in this context gets. None as a value: it must not have it.
_outgoing: ContextVar[Headers | None] = ContextVar("celery_dedupe_outgoing", default=None)
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

    def send_task(
        self, name: str, args: Any = None, kwargs: Any = None, *more: Any, dedupe: Any = None, **options: Any
    ) -> Any:
        """``Celery.send_task`` with one more option, the call's own ``dedupe``."""
        if more:
            options.update(_by_name(more))
        again = _passing.get()
        if again is not None and again.id == options.get("task_id"):
            # Celery takes the run that sends it for its parent.
            return self._send_task(name, args, kwargs, options, {"parent_id": again.parent_id})
        publishing = self._publishing(name, dedupe, options)
        if publishing is None:
            return self._send_task(name, args, kwargs, options, None)
        own_id = options.get("task_id")
        task_id = options["task_id"] = own_id or uuid()
        began = time.perf_counter()
        try:
            call = messages.published(self._desk.app, name, args, kwargs, options, self._desk.signature(name))
            dropped = self._decide(publishing, call, options)
            publishing.seconds = time.perf_counter() - began
            if dropped is None:
                sent = self._send_task(name, args, kwargs, options, publishing.headers)
        except BaseException:
            if publishing.claimed:
                self._desk.guard.withdraw(publishing.claimed, task_id)
            raise
        if dropped is None:
            for word in publishing.counted:
                self._desk.guard.reports.reached(name, task_id, word, publishing.seconds)
            return sent
        self._desk.guard.reports.reached(name, task_id, "dropped", publishing.seconds)
        if own_id not in (None, dropped.duplicate.task_id):
            self._end(call, options, dropped)
        return self._answer(name, dropped, options, attended=publishing.attended)

    def before_task_publish(self, sender: str, headers: dict[str, Any], **_: Any) -> None:
        """Receiver: write the ticket into the message that ``send_task`` has let through."""
        written = _outgoing.get()
        if written is None:
            return
        _outgoing.set(None)  # What other receivers publish meanwhile by other means is not this message.
        for name, value in written.items():
            if value is None and name == HEADER:
                headers.pop(name, None)
            else:
                headers[name] = value

    def _send_task(
        self, name: str, args: Any, kwargs: Any, options: dict[str, Any], headers: Headers | None
    ) -> Any:
        # Looked up late: a tracer may have patched the class after ``init_app``.
        app, send = self._desk.app, self._shadowed
        if send is None:
            send = type(app).send_task.__get__(app)
        if headers is None and _outgoing.get() is None:
            return send(name, args, kwargs, **options)
        # Set even to None: this may be a publish from within that of another.
        token = _outgoing.set(headers)
        try:
            return send(name, args, kwargs, **options)
        finally:
            _outgoing.reset(token)

    def _publishing(self, name: str, override: Any, options: dict[str, Any]) -> _Publishing | None:
        if options.get("retries"):
            task = self._desk.app.current_worker_task
            request = task.request if task else None
            if request and options.get("task_id") == request.id and options["retries"] > request.retries:
                # A retry goes on under the terms of its run, which the message's own header carries.
                run = getattr(request, VERDICT, None)
                return _Publishing(run.policies, retry_of=run) if isinstance(run, Run) else None
        policies = self._desk.policies(name, override)
        if not policies and override is None:
            return None
        # A chain in a group, and on older Celery a chord's body, have nothing but what freezing gave them.
        task_id = options.get("task_id")
        frozen = task_id and options.get("reply_to")
        within = any(map(options.get, ("parent_id", "root_id", "group_id")))
        if frozen and not within:
            within = bool(self._desk.app.current_worker_task or not options.get("add_to_parent", True))
        return _Publishing(policies, override, bool(task_id and within), not within)

    def _decide(self, publishing: _Publishing, call: Call, options: dict[str, Any]) -> Drop | None:
        desk, policies = self._desk, publishing.policies
        if publishing.retry_of is not None:
            self._retry(publishing, publishing.retry_of, call)
            return None
        publishing.counted = ("published",) if policies else ()
        try:
            keys = desk.keys(call, policies)
        except Exception as error:
            if publishing.attended and not all(policy.observe for policy in policies):
                raise
            # Nobody is there to mend it: a link of a chain would fail the task it follows.
            logger.exception("%s[%s] is published without a claim", call.task, call.task_id)
            reason = f"{type(error).__name__}: {error}"
            desk.guard.reports.unprotected(call.task, call.task_id, "publish", reason)
            publishing.headers = {HEADER: None}  # One that comes along with others is another message's.
            return None
        inside = current_run()
        ticket = Ticket(
            keys,
            secrets.token_hex(4),
            portable(publishing.override),
            claimed_by(keys, inside),
            generation=_generation(call.task_id, options.get("headers"), inside),
            workflow=publishing.promised or call.workflow,
            serializer=messages.serializer_of(desk.app, call.task, options),
        )
        outcome = claims.claim(desk.guard, call, policies, ticket, attended=publishing.attended)
        if isinstance(outcome, Drop):
            if not outcome.observed:
                return outcome
            ticket = replace(ticket, observed=True)
            publishing.counted = ("published", "would_drop")
        publishing.claimed = keys if outcome else ()
        publishing.headers = {HEADER: ticket.to_header()}
        return None

    def _retry(self, publishing: _Publishing, run: Run, call: Call) -> None:
        # Never its own duplicate: the run still holds its slots, and its end puts them back in the queue.
        run.retry_in = call.eta_in
        ticket = run.ticket.as_new(secrets.token_hex(4))
        publishing.claimed = claims.claim_retry(self._desk.guard, call, publishing.policies, ticket)
        publishing.headers = {HEADER: ticket.to_header()}

    def _end(self, call: Call, options: dict[str, Any], dropped: Drop) -> None:
        """End an id that the caller has chosen, and may wait for."""
        app = self._desk.app
        try:
            request = messages.context(app, call, options)
            end_revoked(app.backend, request, f"duplicate of {dropped.duplicate.task_id}")
        except Exception:  # The call is a duplicate all the same; an error here would cut a group in half.
            logger.exception("%s[%s] is dropped, and its result was not stored", call.task, call.task_id)

    def _answer(self, name: str, dropped: Drop, options: dict[str, Any], *, attended: bool) -> Any:
        """What the caller of a dropped publish gets."""
        if dropped.policy.on_duplicate == "raise" and attended:
            raise refusal(dropped.duplicate)
        if dropped.policy.on_duplicate == "none":
            return None
        app = self._desk.app
        result = (options.get("result_cls") or app.AsyncResult)(dropped.duplicate.task_id)
        if messages.ignores_result(app, name, options):
            result.ignored = True  # As the first one's: ``get`` does not wait for what is never stored.
        return self._seconds.mark(result, dropped.duplicate)


def _by_name(more: Sequence[Any]) -> dict[str, Any]:
    """What ``Celery.send_task`` takes by position after the arguments of the task."""
    names = list(inspect.signature(Celery.send_task).parameters)[4:-1]
    if len(more) > len(names):
        raise TypeError(
            f"send_task takes at most {3 + len(names)} arguments by position, not {3 + len(more)}"
        )
    return dict(zip(names, more, strict=False))


def _generation(task_id: str, headers: Headers | None, inside: Run | None) -> int:
    """One more than that of the message this one follows under its task id; 0 if it is the first.

    A task that replaces itself is inside its predecessor. Where the parent process retries for a lost child
    (``retry_on_worker_lost``, Celery 5.7) the predecessor's ticket is among the headers.
    """
    if inside is not None and inside.call.task_id == task_id:
        return inside.ticket.generation + 1
    earlier = from_headers(headers)
    return earlier.generation + 1 if earlier else 0
