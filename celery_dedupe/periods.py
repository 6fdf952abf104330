"""``only_after``: a block of code that runs once a period, over all processes."""

from __future__ import annotations

import secrets
from typing import Any

from celery import current_app
from celery._state import get_current_worker_task

from celery_dedupe.core.asks import Caller, ClaimAsk
from celery_dedupe.core.durations import Duration, seconds
from celery_dedupe.core.keys import readable
from celery_dedupe.core.locks import OnStoreError
from celery_dedupe.core.places import placed
from celery_dedupe.errors import ConfigurationError, StoreUnavailable
from celery_dedupe.extension import ATTRIBUTE, Dedupe
from celery_dedupe.guard import Guard


def only_after(key: str, period: Duration, *, on_store_error: OnStoreError = "allow") -> bool:
    """Whether ``period`` has passed since this was last true for ``key``, in any process of any task.

    Of many that ask at one moment one is told so. The period begins there, whatever becomes of the block: if
    it fails, nobody is told so before the period has passed. In mode ``off`` and ``observe`` it is true.

    Arguments:
        key: what the block is for; the same word means the same period, in every task of the app.
        period: seconds, a ``timedelta`` or a text such as ``"15m"``; 1 ms or more.
        on_store_error: while the store cannot be reached, ``"allow"`` says true, ``"refuse"`` raises
            ``StoreUnavailable``.

    Raises:
        ConfigurationError: the app of the running task, else Celery's current app, has no ``Dedupe``.
        ValueError: the key is empty, the period is no duration, or ``on_store_error`` is another word.
    """
    if not key:
        raise ValueError("only_after: the key is empty; pass a text that says what the block is for")
    if on_store_error not in ("allow", "refuse"):
        raise ValueError(f"only_after: on_store_error {on_store_error!r} is neither 'allow' nor 'refuse'")
    try:
        ttl = max(int(seconds(period) * 1000), 1)
    except ValueError as error:
        raise ValueError(f"only_after: period {period!r} {error}") from None
    task: Any = get_current_worker_task()
    dedupe = _extension_of(task.app if task else current_app)
    settings = dedupe.settings
    if settings.mode == "off":
        return True
    place = dedupe.guard.store.first.name
    ask = ClaimAsk(placed(f"{settings.prefix}:only_after:{readable(key)}", place), ttl, frozenset({"queued"}))
    try:
        granted = _claimed(dedupe.guard, ask, task)
    except StoreUnavailable as error:
        if on_store_error == "refuse" and settings.mode != "observe":
            raise
        if task:
            reason = f"only_after {key!r}: {error}"
            dedupe.guard.reports.unprotected(task.name, task.request.id, "start", reason)
        return True
    return granted or settings.mode == "observe"


def _claimed(guard: Guard, ask: ClaimAsk, task: Any) -> bool:
    # Each time under another name, for a claim is in nobody's way who has its name: in a retry's, for one.
    name = f"{task.request.id if task else 'program'}/{secrets.token_hex(4)}"
    return guard.store.claim([ask], Caller(name)) is None


def _extension_of(app: Any) -> Dedupe:
    found: Dedupe | None = getattr(app, ATTRIBUTE, None)
    if found is None:
        raise ConfigurationError(f"only_after: {app!r} has no Dedupe; call Dedupe(app).init_app() first")
    return found
