"""What is counted of each task, hour by hour, and what the counts come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from celery_dedupe.core.verdicts import Poison, Raise, Refusal, Skip, Wait
from celery_dedupe.errors import StoreUnavailable

Counted = Literal[
    "published",  # calls that went out; a retry, and a message that comes back from a wait, is none
    "dropped",  # calls that did not
    "started",  # runs that were let through, each retry's and redelivery's too
    "skipped",  # starts refused for good, as duplicates or by their rate: ended REVOKED, or FAILURE
    "waited",  # starts refused for now: the message comes back
    "poisoned",  # starts refused for good by max_deliveries
    "lease_lost",  # leases that ended under their run
    "unprotected",  # publishes and starts that went on without their locks
    "would_drop",  # of those published: what a lock that only observes would have dropped
    "would_skip",  # of those started, likewise, if it was not counted as dropped already
    "would_wait",  # likewise
]
COUNTED: tuple[Counted, ...] = get_args(Counted)

_WOULD: Mapping[Counted | None, Counted] = {"skipped": "would_skip", "waited": "would_wait"}

Counts = Mapping[tuple[str, str], int]  # (task, what was counted) -> how often

HOUR = 3_600_000  # ms
KEPT = 8 * 24 * HOUR  # ms; so "the last seven days" are all there


def counted(verdict: Refusal) -> Counted | None:
    """What a refused start is counted as; ``None`` for a copy of a message, and for want of the store."""
    if isinstance(verdict, Wait):
        return "waited"
    if isinstance(verdict, Poison):
        return "poisoned"
    if isinstance(verdict, Raise):
        return None if isinstance(verdict.error, StoreUnavailable) else "skipped"
    return "skipped" if isinstance(verdict, Skip) else None


def would_be(verdict: Refusal | None) -> Counted | None:
    """What a start is counted as beside ``"started"``, by what a lock that only observes made of it."""
    return _WOULD.get(counted(verdict)) if verdict else None


def hours(since: int, now: int) -> range:
    """The hours that are kept of those from ``since`` to ``now``, each by its number since 1970.

    Both in ms of the store's clock. The hour that ``since`` lies in is one of them.
    """
    return range(max(since, now - KEPT + HOUR) // HOUR, now // HOUR + 1)


@dataclass(frozen=True, slots=True)
class Line:
    """The counts of one task.

    Attributes:
        counts: each word of ``COUNTED``, 0 where nothing was counted.
    """

    task: str
    counts: Mapping[Counted, int]

    @property
    def calls(self) -> int:
        """How often the task was called."""
        return self.counts["published"] + self.counts["dropped"]

    @property
    def saved(self) -> float:
        """The share of calls that did not run since they were duplicates, 0 to 1."""
        return self._share("dropped", "skipped")

    @property
    def would_save(self) -> float:
        """The share of calls that ran since their duplicates are observed only, 0 to 1."""
        return self._share("would_drop", "would_skip")

    def _share(self, *words: Counted) -> float:
        # A program without the extension may publish what a worker with it skips.
        duplicates = sum(self.counts[word] for word in words)
        return min(duplicates / self.calls, 1.0) if self.calls else float(duplicates > 0)


def lines(counts: Counts) -> list[Line]:
    """One line a task, the most called first. What a newer version counts is left out."""
    tasks = sorted({task for task, _ in counts})
    found = [Line(task, {word: counts.get((task, word), 0) for word in COUNTED}) for task in tasks]
    return sorted(found, key=lambda line: -line.calls)


def total(parts: Iterable[tuple[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    """Sum up counts that come in parts."""
    summed: dict[tuple[str, str], int] = {}
    for name, number in parts:
        summed[name] = summed.get(name, 0) + number
    return summed
