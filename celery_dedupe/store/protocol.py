"""What a claim store can do: few verbs, each atomic over the list of locks it is given.

Durations are whole milliseconds. Time is the store's own clock; no caller's clock is ever compared with it.
Every verb raises ``StoreUnavailable`` when the store cannot answer or cannot write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from celery_dedupe.core.record import Record
from celery_dedupe.core.transitions import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)


class Store(Protocol):
    """Where claims live. ``memory`` and ``redis`` pass one conformance suite (tests/contract)."""

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        """Claim all locks for a publish, or none. ``None`` means granted."""

    def withdraw(self, keys: Collection[str], task_id: str, *, running: bool = False) -> None:
        """Give back the queued claims of ``task_id`` and, if ``running``, its slots. Other owners' stay."""

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        """End the queued claims of a task and take its running slots: all of them, or none."""

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        """Prolong many leases in one call. ``False`` where the slot is no longer the asker's."""

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        """Free the locks of an ending run. ``False`` where its slot was another's, or gone, already."""

    def read(self, key: str) -> Record:
        """The record as it stands, without the parts whose time has passed."""

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        """Every key that matches the glob ``pattern``, with its record, in steps that block nobody."""

    def evict(self, keys: Collection[str], *, running: bool = False) -> int:
        """An operator's release: frees queued and done parts, and running slots if asked. Returns how many."""

    def clock(self) -> int:
        """The store's clock, in milliseconds since 1970."""

    def close(self) -> None:
        """Let go of connections. The store must not be used afterwards."""
