"""Celery's payload shapes to calls and back. Nothing else here knows how a message or a request is built."""

from __future__ import annotations

import inspect
import logging
import math
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from numbers import Real
from typing import Any, cast

from celery import Celery
from celery.app.task import Context, Task
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601

from celery_dedupe.core.call import Call

logger = logging.getLogger("celery_dedupe")

DEAD_LETTERED = ("x-death", "x-first-death-", "x-last-death-")  # how the headers begin that RabbitMQ adds
CONTINUATIONS = ("chain", "chord", "link", "link_error", "group_id")
# From Celery 5.7 on a call by name takes what the task itself says, where the program knows it.
BY_NAME_AS_THE_TASK_SAYS = inspect.signature(Celery.send_task).parameters["expires"].default is not None


def published(
    app: Any,
    task: str,
    args: Any,
    kwargs: Any,
    options: Mapping[str, Any],
    signature: inspect.Signature | None,
) -> Call:
    """The call that ``send_task`` is about to publish, with these arguments and options and a ``task_id``."""
    countdown, expires = options.get("countdown"), _said(app, task, options, "expires")
    return Call(
        task=task,
        task_id=options["task_id"],
        args=args or (),
        kwargs=kwargs or {},
        signature=signature,
        eta_in=(float(countdown) if countdown else _seconds_until(options.get("eta"))) or 0.0,
        expires_in=float(expires) if isinstance(expires, Real) else _seconds_until(expires),
        retries=options.get("retries") or 0,
        workflow=any(map(options.get, CONTINUATIONS)),
    )


def ignores_result(app: Any, task: str, options: Mapping[str, Any]) -> bool:
    """Whether nobody is to wait for the result of the call that ``send_task`` is about to publish."""
    return bool(_said(app, task, options, "ignore_result"))


def context(app: Any, call: Call, options: Mapping[str, Any]) -> Context:
    """What a worker would make of the message of a call: for the backend, to end it without a worker."""
    kept = ("chain", "chord", "group_index", "root_id", "parent_id", "shadow")
    return Context(
        {name: options.get(name) for name in kept},
        ignore_result=ignores_result(app, call.task, options),
        reply_to=options.get("reply_to") or app.thread_oid,
        task=call.task,
        id=call.task_id,
        args=call.args,
        kwargs=call.kwargs,
        callbacks=maybe_list(options.get("link")),
        errbacks=maybe_list(options.get("link_error")),
        group=options.get("group_id"),
        retries=call.retries,
    )


def requested(task: str, request: Any, signature: inspect.Signature | None) -> Call:
    """The call that a worker is about to run, from its ``Context`` or its ``Request``."""
    return Call(
        task=task,
        task_id=request.id,
        args=request.args or (),
        kwargs=request.kwargs or {},
        signature=signature,
        retries=getattr(request, "retries", 0) or 0,
    )


def signature_of(task: Task[Any, Any]) -> inspect.Signature | None:
    """The signature that a caller of the task sees; ``None`` for a callable that has none.

    ``Task.run`` of a bound task is a method, so ``self`` is left out; ``autoretry_for``, Sentry and the like
    wrap it with ``functools.wraps``, which ``inspect.signature`` sees through.
    """
    try:
        return inspect.signature(task.run)
    except (TypeError, ValueError):
        return None


def headers_of(request: Context) -> Mapping[str, Any]:
    """All headers of a task's message.

    ``request.headers`` alone is not enough: where the message has a header named ``headers``, as Sentry sends
    it, it holds what is in there and none of the others, which are attributes of the request still.
    """
    return {**(request.headers or {}), **vars(request)}


def sent_again(
    task: Task[Any, Any], request: Any, headers: Mapping[str, Any], countdown: float, serializer: str
) -> None:
    """Send a running task's message again, to start in ``countdown`` seconds.

    Id, arguments, retries, chain, chord, callbacks, errbacks, group, stamps, limits, expiry, queue and
    priority stay as they were: this is what ``Task.retry`` does, but for the count. ``serializer`` is its
    ticket's.
    """
    # What signature_from_request leaves out, some of it before Celery 5.7 only. A repr that was given to hide
    # a secret goes on hiding it.
    left_out = ("argsrepr", "kwargsrepr", "compression", "ignore_result")
    kept = {name: request.__dict__.get(name) for name in left_out}
    queues = list(task.app.amqp.queues.values())
    if any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in queues):
        # RabbitMQ's delayed delivery for these takes whole seconds, and none at all is an error.
        countdown = math.ceil(countdown)
    # RabbitMQ drops a message whose headers tell of the delays that it has been through: it goes in circles.
    custom = {n: value for n, value in (request.headers or {}).items() if not n.startswith(DEAD_LETTERED)}
    options: dict[str, Any] = {
        **{name: value for name, value in kept.items() if value is not None},
        "countdown": countdown,
        "retries": request.retries,
        "headers": {**custom, **headers},
        "add_to_parent": False,
    }
    if serializer:
        options["serializer"] = serializer
    if exchange := (request.delivery_info or {}).get("exchange"):
        # A forked child has declared nothing yet, and kombu's own transports drop what they cannot route.
        options["declare"] = [queue for queue in queues if queue.exchange.name == exchange]
    task.signature_from_request(request, **options).apply_async()


def start_within(request: Any, seconds: float) -> None:
    """Have a message that was received start in ``seconds`` at most.

    Its eta is by the clock of the machine that sent it, and another reads it.
    """
    latest = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    if request.eta is not None and request.eta > latest:
        request._eta = latest


def has_expired(request: Any) -> bool:
    """Whether a message that was received and has not started will not start any more: it is too late."""
    return request.expires is not None and request.expires <= datetime.now(timezone.utc)


def serializer_of(app: Any, task: str, options: Mapping[str, Any]) -> str:
    """The serializer of a call that is about to be published; ``""`` for JSON."""
    registered = app._tasks.get(task)
    found: str = (
        options.get("serializer") or getattr(registered, "serializer", None) or app.conf.task_serializer
    )
    return "" if found == "json" else found


def final_state(app: Celery, task_id: str, since: int) -> str | None:
    """The state of a task's result if it is final and was stored at ``since`` or later.

    ``since`` is in ms by the clock of the worker that stores it: an id that was used before has an older
    final result, and a clock of another machine proves nothing.
    """
    backend = app.backend
    if backend.as_uri().startswith("rpc:"):
        return None  # A look would declare a queue, and results are in the caller's.
    meta: Mapping[str, Any] = backend.get_task_meta(task_id)
    state: str = meta.get("status", "PENDING")
    if state not in backend.READY_STATES:
        return None
    done = meta.get("date_done")
    if not done or not isinstance(done, (str, datetime)):
        return None
    moment = _moment(done)
    # A column of MySQL or MariaDB keeps no fraction of the second.
    latest = moment.timestamp() * 1000 + (0 if moment.microsecond else 999)
    return state if latest >= since else None


def succeeded_before(task: Task[Any, Any], request: Any, waited: float = 0.0) -> bool:
    """Whether a message that may be one copy of several belongs to a task whose result is SUCCESS.

    Asked of the result backend for two kinds only: those that the broker marks as redelivered, and those with
    an eta, which a worker holds back unacknowledged for so long that the broker may hand out more copies, of
    which the first bears no mark. A success before the eta is not a copy's, since every worker waits for the
    eta by its own clock; but one that has ``waited`` (seconds) for its locks was given a new eta each time.
    Random (version 4) ids only: an id that a program chose itself may have been used before, and the old
    result would end the new task unseen.
    """
    redelivered = (request.delivery_info or {}).get("redelivered")
    if not (redelivered or request.eta) or not _is_random(request.id):
        return False
    try:
        since = 0 if redelivered else int((_moment(request.eta).timestamp() - waited) * 1000)
        return final_state(task.app, request.id, since) == "SUCCESS"
    except Exception:
        logger.debug("No look at the result of %s", request.id, exc_info=True)
        return False


def _is_random(task_id: str) -> bool:
    try:
        return uuid.UUID(task_id).version == 4
    except ValueError:
        return False


def _said(app: Any, task: str, options: Mapping[str, Any], name: str) -> Any:
    """An option of a call; where it has none, what the task says, if Celery looks there too."""
    if name not in options and options.get("task_type") is None and BY_NAME_AS_THE_TASK_SAYS:
        return getattr(app._tasks.get(task), name, None)
    return options.get(name)


def _seconds_until(when: Any) -> float | None:
    return (_moment(when) - datetime.now(timezone.utc)).total_seconds() if when else None


def _moment(when: Any) -> datetime:
    moment = cast(datetime, maybe_iso8601(when))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
