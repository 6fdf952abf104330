"""What the versions beside this project cannot do. Pure; ``docs/versions.md`` says the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from celery_dedupe.core.findings import Finding, Kind, named

NEWEST_TRIED = (5, 7)
TELLS_OF_HARD_LIMITS = (5, 7)
OLDEST_SERVERS = {"redis": (6, 2)}
# Its PubSub has a lock that a garbage collection in the wrong moment waits for in vain.
HANGING_CLIENTS = (5, 3), (6, 4)


def shortcomings(
    *, celery: str, servers: Sequence[str], results_client: str | None, limited: Sequence[str]
) -> list[Finding]:
    """One finding for each thing that these versions cannot do, with the mend.

    Arguments:
        celery: its version.
        servers: name and version of each store, ``"redis 6.0.16"``.
        results_client: the version of redis-py, if Celery keeps its results with it.
        limited: the tasks that have a hard time limit and a lock that refuses a start.
    """
    found: list[Finding] = []

    def add(kind: Kind, text: str) -> None:
        found.append(Finding(kind, text))

    if _numbers(celery) > NEWEST_TRIED:
        tried = ".".join(map(str, NEWEST_TRIED))
        add(
            "warning",
            f"this was not tried with Celery {celery}, only up to {tried}: look for a newer version",
        )
    if limited and _numbers(celery) < TELLS_OF_HARD_LIMITS:
        add(
            "warning",
            f"Celery {celery} does not tell of a task that its hard time limit ends, so the lock of "
            f"{named(limited)} is then held until its lease has run out: set a lease no longer than you "
            "would wait, or take Celery 5.7",
        )
    for server in servers:
        name, _, version = server.partition(" ")
        if version and _numbers(version) < OLDEST_SERVERS.get(name, (0, 0)):
            add("error", f"{server} cannot take claims: they need Redis 6.2 or newer, or Valkey")
    first, fixed = HANGING_CLIENTS
    if results_client and first <= _numbers(results_client) < fixed:
        add(
            "error",
            f"redis-py {results_client} can hang Celery's result backend for ever: take one before 5.3, or "
            "6.4 or newer",
        )
    return found


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else NEWEST_TRIED
