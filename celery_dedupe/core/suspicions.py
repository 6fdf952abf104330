"""What is allowed and still likely to surprise: settings that do not fit each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from celery_dedupe.core.findings import Finding, Kind, named
from celery_dedupe.core.policy import Policy


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store says of itself; ``None`` where it does not say.

    Attributes:
        name: what it is, for people: ``"valkey 9.1"``.
        shared: processes other than this one see the same claims.
        evicts: the policy by which it may drop claims when its memory is full, else ``""``.
        persists: every claim outlives a crash of the server (``appendonly``).
        writable: it takes writes (it is no replica).
        size: about how many records it has, and whatever else lives there.
    """

    name: str
    shared: bool = True
    evicts: str | None = None
    persists: bool | None = None
    writable: bool | None = None
    size: int | None = None


def suspicions(
    tasks: Mapping[str, Iterable[Policy]],
    facts: StoreFacts,
    *,
    visibility_timeout: float | None,
    private_results: bool,
) -> list[Finding]:
    """One finding for each thing that is likely to surprise.

    Arguments:
        tasks: the policies of each task.
        visibility_timeout: seconds after which the broker delivers an unacknowledged message again.
        private_results: results cannot be read by another process than the first caller's (``rpc://``).
    """
    policies = [policy for some in tasks.values() for policy in some]
    found: list[Finding] = []

    def add(kind: Kind, text: str) -> None:
        found.append(Finding(kind, text))

    if not facts.shared:
        add(
            "warning",
            "memory:// keeps claims in this process alone: set dedupe_url to a Redis that all processes use",
        )
    if facts.writable is False:
        add("error", f"{facts.name} is a replica and takes no claims: let dedupe_url name its primary")
    if facts.evicts:
        add(
            "error",
            f"{facts.name} may drop claims when its memory is full (maxmemory-policy {facts.evicts}): "
            "set noeviction, or give claims a server of their own",
        )
    if facts.persists is False and any(policy.traits.remembers for policy in policies):
        add(
            "warning",
            f"{facts.name} has appendonly off, so a crash makes lock 'once' forget what was done since "
            "the last snapshot: turn it on",
        )
    if visibility_timeout is not None:
        found += _longer_than_redelivery(tasks, visibility_timeout)
    waiting = [name for name, some in tasks.items() if any(one.on_duplicate == "existing" for one in some)]
    if private_results and waiting:
        add(
            "warning",
            "rpc:// sends a result to its first caller only, so on_duplicate='existing' gives the caller of "
            f"a duplicate of {named(waiting)} one that never comes: set result_backend to redis://, or "
            "on_duplicate='none'",
        )
    return found


def _longer_than_redelivery(
    tasks: Mapping[str, Iterable[Policy]], visibility_timeout: float
) -> list[Finding]:
    return [
        Finding(
            "warning",
            f"the lease of {name}, {policy.lease:g} s, is longer than the broker's visibility_timeout, "
            f"{visibility_timeout:g} s: after a crash the redelivered message waits for it. "
            "Set a shorter lease",
        )
        for name, policies in tasks.items()
        for policy in policies
        if policy.traits.runs and policy.lease > visibility_timeout
    ]
