"""What workers say of themselves when they are asked, and what is to be said of that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_dedupe.core.durations import about
from celery_dedupe.core.findings import Finding, named

SKEW = 5.0  # seconds between two clocks that nobody minds


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker's answer, or what this program would answer.

    Attributes:
        node: its name.
        digest: of its rules.
        prefix, store: where it keeps its claims; the store's URL without its password.
        breaker: ``"open"`` if it does not reach the store.
        tasks: those that it has, without Celery's own.
        queues: those it takes messages from.
        messages: how many messages it has, waiting or running, of tasks that may hold locks.
        leases: what its runs hold.
        skew: seconds that its clock is ahead of the one of who asks, at least; negative if it is behind.
    """

    node: str
    version: str = ""
    mode: str = ""
    digest: str = ""
    prefix: str = ""
    store: str = ""
    breaker: str = "closed"
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    messages: int = 0
    leases: tuple[Mapping[str, Any], ...] = ()
    skew: float = 0.0


def skew(clock: float, asked: float, answered: float) -> float:
    """How far a clock is ahead at least, if it was read between two moments of one's own."""
    return max(clock - answered, 0.0) or min(clock - asked, 0.0)


def clock(what: str, seconds: float) -> list[Finding]:
    """What is to be said of a clock that is so far ahead."""
    if abs(seconds) <= SKEW:
        return []
    way = "ahead of" if seconds > 0 else "behind"
    text = (
        f"{what} is {about(abs(seconds))} {way} this machine's: locks go by the store's clock alone, but "
        "Celery's eta, countdown and expires go by those of machines"
    )
    return [Finding("warning", text)]


def compared(mine: Worker, workers: Sequence[Worker], bare: Collection[str]) -> list[Finding]:
    """What is to be said of the workers that have tasks of ours.

    Arguments:
        mine: what this program would answer.
        bare: workers that have tasks which are under a rule here, and do not have the extension.
    """
    found = [
        Finding(
            "error",
            f"{node} does not have celery-dedupe: it runs these tasks without their locks and gives back no "
            "claims. Let its app call Dedupe(app).init_app()",
        )
        for node in sorted(bare)
    ]
    found += _apart(mine, workers, "rules", lambda worker: worker.digest)
    found += _apart(mine, workers, "mode", lambda worker: worker.mode)
    found += _apart(mine, workers, "prefix", lambda worker: worker.prefix)
    found += _apart(mine, workers, "store", lambda worker: worker.store)
    for worker in workers:
        if worker.breaker == "open":
            found.append(Finding("error", f"{worker.node} does not reach the claim store: see its log"))
        found += clock(f"the clock of {worker.node}", worker.skew)
    if workers and mine.mode != "off" and all(worker.mode == "off" for worker in workers):
        text = "no worker that answers gives back claims: all are in mode off. Set dedupe_mode there first"
        found.append(Finding("error", text))
    return found


def _apart(mine: Worker, workers: Sequence[Worker], what: str, of: Callable[[Worker], str]) -> list[Finding]:
    """Workers that differ are an error. That they agree, and this program does not, is a warning."""
    groups: dict[str, list[str]] = {}
    for worker in workers:
        groups.setdefault(of(worker), []).append(worker.node)
    if len(groups) > 1:
        each = "; ".join(f"{value} at {named(nodes)}" for value, nodes in groups.items())
        return [Finding("error", f"workers differ in their {what}: {each}. Deploy the same to all")]
    if groups and of(mine) not in groups:
        (theirs,) = groups
        return [Finding("warning", f"this program's {what} is {of(mine)}, and that of the workers {theirs}")]
    return []
