"""``celery inspect dedupe``: what a worker says of its locks over remote control."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

from celery.worker import state as worker_state
from celery.worker.control import inspect_command

from celery_dedupe.core.addresses import located
from celery_dedupe.core.places import place_of
from celery_dedupe.core.spelling import digest
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.gates.desk import Desk, keys_of
from celery_dedupe.settings import Settings

NAME = "dedupe"
ABSENT = "the app of this worker has no celery-dedupe"
UNKNOWN = repr(KeyError(NAME))  # what a worker answers that does not know the command


class Inspected(Desk, Protocol):
    """What is asked of the extension that answers."""

    @property
    def settings(self) -> Settings:
        """The settings."""

    def inspected(self, node: str, queues: Collection[str]) -> dict[str, Any]:
        """What it answers."""


def register() -> None:
    """Have the workers of this process know the command. A second time it has no effect."""
    inspect_command(name=NAME, help="What celery-dedupe holds here, and by which rules.")(_answer)


def _answer(state: Any, **_: Any) -> dict[str, Any]:
    extension: Inspected | None = getattr(state.app, NAME, None)
    if extension is None:
        return {"error": ABSENT}
    queues = [queue.name for queue in state.consumer.task_consumer.queues]
    return extension.inspected(state.hostname, queues)


def answer(dedupe: Inspected, node: str, queues: Collection[str], received: Sequence[Any]) -> dict[str, Any]:
    """What a worker says of itself: plain JSON. ``received`` are the requests that it has."""
    settings = dedupe.settings
    leases: list[dict[str, Any]] = []
    if settings.mode != "off":
        # Where it stops short, the breaker tells why.
        with suppress(StoreUnavailable):
            leases += _leases(dedupe, node, received)
    return {
        **identity(dedupe),
        "breaker": "open" if settings.mode != "off" and dedupe.guard.store.open else "closed",
        "queues": sorted(queues),
        "messages": len(received),
        "leases": leases,
        "clock": time.time(),
    }


def identity(dedupe: Inspected) -> dict[str, Any]:
    """What is to be the same in all programs of an app."""
    settings = dedupe.settings
    return {
        "version": version("celery-dedupe"),
        "mode": settings.mode,
        "digest": digest(settings.rules),
        "prefix": settings.prefix,
        "store": located(settings.stores),
        # Without Celery's own.
        "tasks": sorted(name for name in dedupe.app.tasks if not name.startswith("celery.")),
    }


def _leases(dedupe: Inspected, node: str, received: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """What runs here holds: as this process knows it, and of its children's runs as the store does."""
    guard = dedupe.guard
    clocks = {}
    for place in guard.store.places.values():
        with suppress(StoreUnavailable):
            clocks[place.name] = place.ask(place.clock)
    own = guard.heartbeat.held()
    for lease in own:
        yield _lease(lease.key, lease.task, lease.task_id, lease.fence, lease.expires_in)
    known = {lease.task_id for lease in own}
    for request in received:
        if request not in worker_state.active_requests or request.id in known:
            continue
        for key in keys_of(dedupe, request.name, request.request_dict, request):
            if place_of(key)[0] not in clocks:
                continue
            place = guard.store.place(key)
            record = place.ask(partial(place.read, key))
            for run in record.runs_of(request.id):
                if run.node == node:
                    left = (run.expires_at - clocks[place.name]) / 1000
                    yield _lease(key, request.name, request.id, run.fence, left)


def _lease(key: str, task: str, task_id: str, fence: int, left: float) -> dict[str, Any]:
    return {"key": key, "task": task, "task_id": task_id, "fence": fence, "expires_in": round(left, 3)}
