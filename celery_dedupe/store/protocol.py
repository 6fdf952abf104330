"""What a claim store can do: few verbs, each atomic over the list of locks it is given.

Durations are whole milliseconds. Time is the store's own clock; no caller's clock is ever compared with it.
Every verb raises ``StoreUnavailable`` when the store cannot answer or cannot write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    EvictAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)
from celery_dedupe.core.counts import Counts
from celery_dedupe.core.record import Record
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.errors import StoreUnavailable

NO_SLOTS: Mapping[str, int] = MappingProxyType({})


class NotARecord(StoreUnavailable):
    """A key of ours holds somebody else's value. It says nothing of the store's health, nor of other keys."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return (
            f"{self.key} in the claim store holds something that is not a record of celery-dedupe: "
            "delete it, or set dedupe_prefix to a word that nobody else uses there"
        )


class NotSetUp(StoreUnavailable):
    """The store is there, and has not been made ready for claims: somebody must do what the message says."""


class Store(Protocol):
    """Where claims live. All stores pass one conformance suite (tests/contract)."""

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        """Claim all locks for a publish, or none. ``None`` means granted.

        The caller's own task id is in nobody's way, so asking again after a lost reply is harmless.
        """

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        """Give back the queued claims of ``task_id`` and, if ``running``, its slots. Other owners' stay.

        ``slots``: what the message was promised under rates, by key; whoever comes next may have them.
        """

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        """End a task's queued claims, take its running slots, count it under its rates: all, or nothing.

        No window of a rate ever has more starts than the rate says. Asking again with the same token after a
        lost reply gives the same slots with the same fences, and counts another start.
        """

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        """Prolong many leases in one call. ``False`` where the slot is no longer the asker's."""

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        """Free the locks of an ending run. ``False`` where its slot was another's, or gone, already.

        Asking again after a lost reply frees nothing more, and says ``False``.
        """

    def read(self, key: str) -> Record:
        """The record as it stands, without the parts whose time has passed."""

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        """Every key that matches ``pattern``, with its record, in steps that block nobody.

        The pattern is a glob of ``*``, ``?``, ``[ab]`` and ``[a-z]``. A key that is there from the first step
        to the last comes at least once; it may come twice. What is not a record is logged and left out.
        """

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        """An operator's release: frees what the asks name, where it is still its owner's.

        Returns how many parts were freed under each key. A run learns of it as it does of any lost lease.
        """

    def count(self, name: str, counts: Counts) -> None:
        """Add to what is counted under ``name``: to the current hour's counts, and to those of all time.

        An hour's are kept for ``KEPT``, those of all time until nothing was counted for as long. After a lost
        reply they may have been added.
        """

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        """What was counted under ``name`` since the hour of ``since``, in ms; of all time if ``None``."""

    def look(self, key: str) -> str:
        """The text that ``swap`` left under ``key``; ``""`` if there is none. It is no record."""

    def swap(self, key: str, before: str, after: str, ttl: int) -> bool:
        """Put one text in the place of another for ``ttl``. ``False`` where ``before`` is there no more."""

    def clock(self) -> int:
        """The store's clock, in milliseconds since 1970."""

    def facts(self) -> StoreFacts:
        """What the store says of itself: whether it may lose or refuse claims."""

    def close(self) -> None:
        """Let go of the connections the store has opened. It must not be used afterwards."""
