"""Decisions as values: what a policy makes of the store's reply. Pure; the guard carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from celery_dedupe.core.asks import BeginAsk, ClaimAsk, FinishAsk, RateAsk
from celery_dedupe.core.call import Call
from celery_dedupe.core.locks import State
from celery_dedupe.core.parts import Holder
from celery_dedupe.core.places import place_of, placed
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rates import Rate, kept
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.errors import DedupeError, DeliveryLimitExceeded, DuplicateTask, RateExceeded

FIRST_DELAY = 0.5  # seconds; doubled with each wait
SOON = 0.05  # seconds; the same, where the run in the way is as good as over
LONGEST_DELAY = 30.0  # seconds
JITTER = 0.25  # of the delay, to both sides

PATIENCE = 0.25  # seconds; a start under a rate that is so near is waited for in place
SILENCE = 10.0  # seconds, and two windows; after so long without a start nobody keeps a slot under a rate
LONGEST_STEP = 600.0  # seconds; what comes back later is sent again in between, or brokers take it for lost

ASKED_FOR = 86_400.0  # seconds; what Celery keeps a result for, unless told otherwise
COUNTED_FOR = 7 * 86_400.0  # seconds; longer than any broker waits before it delivers a message again

Ending = Literal["succeeded", "failed", "ignored", "retried", "requeued", "unknown"]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Why a call was turned away: the task that holds the lock.

    Attributes:
        task_id: id of the task that holds the lock (the incumbent).
        task: name of the task that was turned away.
        state: what the incumbent is: ``"queued"``, ``"running"`` or ``"done"``.
        expires_in: seconds until its claim ends unless renewed; ``None`` if it is kept for ever.
        key: the lock's key in the store.
    """

    task_id: str
    task: str
    state: str
    expires_in: float | None
    key: str


@dataclass(frozen=True, slots=True)
class Skip:
    """The run ends REVOKED: the work is being done, or was done, by another, or there is too much of it."""

    duplicate: Duplicate | None
    reason: str = "duplicate"


@dataclass(frozen=True, slots=True)
class Raise:
    """The run ends FAILURE with ``error``."""

    error: DedupeError
    reason: str = "duplicate"
    duplicate: Duplicate | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The message is sent again, to start in ``delay`` seconds with ``ticket``.

    ``error`` is for an eager call, which has no message that could come back.
    """

    delay: float
    ticket: Ticket
    reason: str
    duplicate: Duplicate | None = None
    error: DedupeError | None = None


@dataclass(frozen=True, slots=True)
class Quiet:
    """The run ends without a trace: another copy of this very message has done its work."""

    reason: str


@dataclass(frozen=True, slots=True)
class Poison:
    """The run ends FAILURE with ``error``: its message has cut off every run so far."""

    error: DeliveryLimitExceeded

    @property
    def reason(self) -> str:
        return f"delivered {self.error.deliveries} times, and max_deliveries is {self.error.limit}"


Refusal = Skip | Raise | Wait | Quiet | Poison


def duplicate(holder: Holder, task: str, key: str) -> Duplicate:
    """What the caller is told of ``holder``."""
    expires_in = None if holder.expires_in is None else holder.expires_in / 1000
    return Duplicate(holder.task_id, task, holder.state, expires_in, key)


def refusal(found: Duplicate) -> DuplicateTask:
    """The error that tells a caller, or a result, of ``found``."""
    return DuplicateTask(found.task, found.task_id, found.state, found.expires_in, found.key)


def claim_ask(policy: Policy, key: str, call: Call) -> ClaimAsk | None:
    """What a publish asks of the store for one policy; ``None`` where the lock has no queued claim."""
    if not policy.traits.claims:
        return None
    blocked_by: frozenset[State] = policy.traits.publish_blocked_by
    return ClaimAsk(key, _ms(queued_for(policy, call)), frozenset(blocked_by))


def retry_ask(policy: Policy, key: str, call: Call) -> ClaimAsk | None:
    """What a retry's publish asks of the store for one policy; ``None`` where the end of its run does it.

    A running slot goes over into the retry's claim when the run ends. Without a slot that would be too late:
    the retry may have started by then, or even ended, and nothing would ever take the claim away.
    """
    traits = policy.traits
    if traits.runs or traits.periodic or not traits.claims:
        return None
    return ClaimAsk(key, _ms(queued_for(policy, call)), frozenset())


def queued_for(policy: Policy, call: Call) -> float:
    """Seconds that the claim of a published call lives: its eta is added, its expiry is the cap."""
    if policy.period is not None:
        return policy.period
    seconds = policy.queue_ttl + max(call.eta_in, 0.0)
    return seconds if call.expires_in is None else max(min(seconds, call.expires_in), 1.0)


def moved(policies: Sequence[Policy], keys: Sequence[str]) -> tuple[str, ...]:
    """The keys of a message in the stores that its policies have by now; none if they are there already."""
    there = tuple(placed(place_of(key)[1], policy.store) for policy, key in zip(policies, keys, strict=True))
    return there if there != tuple(keys) else ()


def must_publish(policy: Policy, ticket: Ticket) -> bool:
    """Whether a duplicate goes out all the same, unclaimed, since other tasks wait for this very message."""
    return ticket.workflow and policy.in_workflow == "publish"


def wait_delay(ticket: Ticket, roll: float) -> float:
    """Seconds until the next try; ``roll`` is a random number from 0 to 1.

    A successor, a retry and a task that replaces itself are published by the very run that they find in their
    way, most often as the last thing it does.
    """
    first = SOON if ticket.successor_of or ticket.generation else FIRST_DELAY
    delay = min(first * 2.0 ** min(ticket.waits, 16), LONGEST_DELAY)
    return delay * (1 + JITTER * (2 * roll - 1))


def longest_wait(ticket: Ticket) -> float:
    """Seconds that a message which comes back was told to wait at most; 0 if it does not."""
    if ticket.told:
        return ticket.told
    return wait_delay(replace(ticket, waits=ticket.waits - 1), 1.0) if ticket.waits else 0.0


def rate_ask(policy: Policy, rate: Rate, slot: int, ticket: Ticket) -> RateAsk:
    """What a start asks of the store under a rate; ``slot`` is what was promised to its message before."""
    starts, window = kept(rate)
    waits = not policy.observe and _patient(policy, ticket)
    patience = 0.0 if policy.observe else PATIENCE
    return RateAsk(starts, window, slot, waits, int(patience * 1e6), 2 * window + int(SILENCE * 1e6))


def begin_ask(
    policy: Policy, key: str, delay: float, *, comes_back: bool, rate: RateAsk | None = None
) -> BeginAsk | None:
    """What a start asks of the store for one policy; ``None`` where it ends nothing and takes nothing.

    ``comes_back``: any of the task's policies may let it wait, so that a refusal keeps every queued claim.
    """
    traits = policy.traits
    if traits.paced:
        return BeginAsk(key, slot=False, rate=rate) if rate else None
    if traits.periodic:
        return None
    until_then = _ms(delay + policy.queue_ttl)
    hold = until_then if traits.claims and comes_back else 0
    if not traits.runs:
        return BeginAsk(key, slot=False, hold=hold)
    return BeginAsk(
        key,
        slot=True,
        limit=policy.limit,
        lease=_ms(policy.lease),
        hold=hold,
        mark=until_then,
        remembers=traits.remembers,
        trace=_ms(ASKED_FOR) if traits.remembers else 0,
        deliveries=policy.max_deliveries or 0,
        counted=_ms(COUNTED_FOR) if policy.max_deliveries else 0,
    )


def may_wait(policy: Policy, ticket: Ticket) -> bool:
    """Whether a refused start of this message could be one that comes back later."""
    return policy.on_conflict == "wait" or bool(ticket.successor_of) or must_publish(policy, ticket)


def on_conflict(
    policy: Policy, key: str, task: str, holders: Sequence[Holder], ticket: Ticket, delay: float
) -> Refusal:
    """What becomes of a run that ``holders`` keep from starting.

    What is done cannot be waited for. A successor waits for the run it was published from, however long
    that takes; everything else waits ``wait_limit`` seconds in all and is a duplicate then.
    """
    found = duplicate(holders[0], task, key)
    if holders[0].state != "done":
        if any(holder.task_id == ticket.successor_of for holder in holders):
            return wait(ticket, delay, "its predecessor still runs", found)
        if _patient(policy, ticket) and ticket.waited < policy.wait_limit:
            return wait(ticket, delay, "the lock is held", found)
    return Raise(refusal(found), duplicate=found) if policy.on_conflict == "raise" else Skip(found)


def on_rate(
    policy: Policy, key: str, task: str, wait: int, ticket: Ticket, promised: Mapping[str, int]
) -> Refusal:
    """What becomes of a run whose rate has no start free for ``wait`` ms.

    It waits for the slot it was promised, however far that is: a rate keeps nobody from running at last.
    """
    seconds = wait / 1000
    error = RateExceeded(task, key, seconds)
    reason = f"its rate has a start free in {seconds:.1f} s"
    if not _patient(policy, ticket):
        return Raise(error, reason) if policy.on_conflict == "raise" else Skip(None, reason)
    told = round(min(seconds, LONGEST_STEP), 3)
    slots = tuple(promised.get(one, 0) for one in ticket.keys)
    later = replace(ticket, slots=slots, told=told, paced=round(ticket.paced + told, 3))
    return Wait(told, later, reason, error=error)


def _patient(policy: Policy, ticket: Ticket) -> bool:
    return policy.on_conflict == "wait" or (policy.on_conflict == "skip" and must_publish(policy, ticket))


def settled(
    policy: Policy, holders: Sequence[Holder], states: Mapping[str, str | None]
) -> tuple[list[Holder], list[Holder]]:
    """Which runs in the way have ended, though their record does not say so: work done, and slots to end.

    Celery stores a result before ``task_postrun``, so whoever saw it may call again too soon; and the process
    may be killed in between, its work done for good. ``states`` has the final state of a run's result by the
    run's token, ``None`` where there is none.
    """
    done, over = [], []
    for holder in holders:
        lapsed = holder.state == "lapsed"
        state = states.get(holder.token)
        if policy.traits.remembers and state == "SUCCESS":
            done += [holder] if lapsed else []
        elif state or lapsed:
            over.append(holder)
    return done, over


def wait(ticket: Ticket, delay: float, reason: str, found: Duplicate | None = None) -> Wait:
    """Come back in ``delay`` seconds."""
    later = replace(ticket, waits=ticket.waits + 1, waited=round(ticket.waited + delay, 3), told=0.0)
    return Wait(delay, later, reason, found, refusal(found) if found else None)


def finish_ask(policy: Policy, key: str, token: str, ending: Ending, retry_in: float) -> FinishAsk | None:
    """What the end of a run asks of the store for one policy; ``None`` where nothing changes.

    ``"unknown"`` is a run that was torn down without a word on whether its message comes back: the claim
    is kept for one lease, which is how long a dead worker's would have lived.
    """
    traits = policy.traits
    if traits.paced:
        return None
    if traits.periodic:
        return FinishAsk(key, "", "withdrawn") if ending == "failed" else None
    if not traits.runs:
        # Nobody could tell a claim made at this end from a claim of the retry, which may have started already
        # (see retry_ask), or from one that was given back meanwhile by whoever tore the run down.
        return FinishAsk(key, "", "queued", _ms(policy.queue_ttl)) if ending == "requeued" else None
    comes_back = {
        "retried": max(retry_in, 0.0) + policy.queue_ttl,
        "requeued": policy.queue_ttl,
        "unknown": policy.lease,
    }
    comes_again = policy.max_deliveries and ending in ("requeued", "unknown")
    deliveries: Literal["forget", "keep"] = "keep" if comes_again else "forget"
    # A lock that claims nothing keeps its retry's count, too: a late copy of this attempt is known by it.
    if ending == "retried" or (traits.claims and ending in comes_back):
        return FinishAsk(key, token, "queued", _ms(comes_back[ending]), deliveries)
    if traits.remembers and ending == "succeeded":
        return FinishAsk(key, token, "done", 0 if policy.keep is None else _ms(policy.keep))
    # A run that has no slot, since the store was away at its start, may still have its queued claim there.
    return FinishAsk(key, token, "free" if token else "withdrawn", deliveries=deliveries)


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
