"""The six locks and the rate as a table of traits. Whatever depends on the kind reads it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

LockName = Literal[
    "until_started", "while_running", "queue_and_run", "until_finished", "until_expired", "once"
]
State = Literal["queued", "running", "done"]
OnConflict = Literal["skip", "wait", "raise"]
OnStoreError = Literal["allow", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What one kind of lock, or a rate, does at publish, at start and after success.

    Attributes:
        name: the word that rules use.
        claims: a publish takes a queued claim.
        runs: a start takes a running slot.
        publish_blocked_by: states of another task's hold that make a publish a duplicate.
        remembers: success leaves a done mark for the policy's ``keep``.
        periodic: the queued claim lives for the policy's ``period``; neither a start nor a success ends it.
        paced: a start is counted under the policy's ``rate``.
        on_conflict: what a refused start does unless the policy says otherwise.
        on_store_error: what happens without the store unless the policy says otherwise.
    """

    name: LockName | Literal["rate"]
    claims: bool = True
    runs: bool = True
    publish_blocked_by: frozenset[State] = frozenset()
    remembers: bool = False
    periodic: bool = False
    paced: bool = False
    on_conflict: OnConflict = "skip"
    on_store_error: OnStoreError = "allow"

    @property
    def shares(self) -> bool:
        """Whether several runs may hold the lock at once (``limit`` above 1)."""
        return self.runs and "running" not in self.publish_blocked_by


LOCKS: Mapping[str, Lock] = MappingProxyType(
    {
        lock.name: lock
        for lock in (
            Lock(name="until_started", runs=False, publish_blocked_by=frozenset({"queued"})),
            Lock(name="while_running", claims=False),
            Lock(name="queue_and_run", publish_blocked_by=frozenset({"queued"}), on_conflict="wait"),
            Lock(name="until_finished", publish_blocked_by=frozenset({"queued", "running"})),
            Lock(name="until_expired", runs=False, publish_blocked_by=frozenset({"queued"}), periodic=True),
            Lock(
                name="once",
                publish_blocked_by=frozenset({"queued", "running", "done"}),
                remembers=True,
                on_store_error="refuse",
            ),
        )
    }
)

RATE = Lock(name="rate", claims=False, runs=False, paced=True, on_conflict="wait")
"""What a policy is that has a rate in place of a lock."""


def kind_of(values: Mapping[str, Any]) -> Lock:
    """Return what policy fields make: a rate, or the lock that they name."""
    return RATE if values.get("rate") is not None else LOCKS[values.get("lock") or "queue_and_run"]
