"""The claims that an app has in its stores, for commands to walk over and to show."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from celery_dedupe.cli.command import Wrong
from celery_dedupe.core.durations import about
from celery_dedupe.core.holdings import Holding
from celery_dedupe.extension import Dedupe
from celery_dedupe.store.protocol import Store


def store_of(dedupe: Dedupe) -> Store:
    """Where the app's claims live."""
    if dedupe.settings.mode == "off":
        raise Wrong("dedupe_mode is 'off', so there is no claim store to look at")
    return dedupe.guard.store


def plain(part: Holding, now: int) -> dict[str, Any]:
    """A part of a record for programs; ``now`` is ms of the store's clock. Times are seconds and UTC."""
    return {
        "state": part.state,
        "task_id": part.task_id,
        "node": part.node or None,
        "since": moment(part.since).isoformat(timespec="milliseconds"),
        "age": (now - part.since) / 1000,
        "expires_in": None if part.expires_at is None else (part.expires_at - now) / 1000,
        "fence": part.fence or None,
    }


def age(part: Holding, now: int) -> str:
    """For how long it has been there, for people."""
    return about((now - part.since) / 1000)


def left(part: Holding, now: int) -> str:
    """For how long it will be there unless renewed, for people."""
    return "never" if part.expires_at is None else about((part.expires_at - now) / 1000)


def moment(ms: int) -> datetime:
    """A time of the store's clock."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
