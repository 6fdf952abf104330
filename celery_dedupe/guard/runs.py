"""A start takes its running slots or is told what becomes of it instead; an end frees them."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    Begun,
    Exceeded,
    FinishAsk,
    Later,
    Over,
    RateAsk,
    Redelivered,
    Refused,
)
from celery_dedupe.core.call import Call
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rates import rate_of
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.core.verdicts import Ending, Poison, Quiet, Raise, Refusal, Skip
from celery_dedupe.errors import DeliveryLimitExceeded, StoreUnavailable
from celery_dedupe.guard import RELEASED_WITHIN, Guard, Policies
from celery_dedupe.heartbeat import Lease

logger = logging.getLogger("celery_dedupe")

Denial = Refused | Redelivered | Exceeded | Later | Over

AGAIN = Quiet("another delivery of this message has ended well")


@dataclass(slots=True)
class Run:
    """A run that was let through, with what it holds.

    ``would_be`` is what a lock that only observes would have made of it.
    ``retry_in`` is set, in seconds, when its body sends its own retry.
    """

    call: Call
    ticket: Ticket
    policies: Policies
    attempt: Attempt
    leases: tuple[Lease, ...] = ()
    would_be: Refusal | None = None
    retry_in: float | None = None


def begin(
    guard: Guard,
    call: Call,
    policies: Policies,
    ticket: Ticket,
    node: str,
    interrupt: Callable[[], Callable[[], None]],
    *,
    ended_well: Callable[[], bool] = lambda: False,
) -> Run | Refusal:
    """Take a call's running slots for its start, or say what becomes of it instead.

    ``interrupt`` makes what stops the calling thread's task; it is for ``on_lease_lost="terminate"``.
    ``ended_well`` tells whether another delivery of the message is known to have. It is asked when the slots
    are taken: asked before, a copy could start and end between the answer and the taking.
    """
    attempt = Attempt(
        call.task_id, secrets.token_hex(8), ticket.nonce, ticket.generation, node, int(time.time() * 1000)
    )
    run = Run(call, ticket, policies, attempt)
    delay = verdicts.wait_delay(ticket, random.random())
    asked = _asked(guard, run, delay)
    try:
        reply = _ask(guard, run, asked, delay)
    except StoreUnavailable as error:
        if ended_well():
            return _report(guard, run, AGAIN)
        return _begin_without_store(guard, error, run, delay)
    if isinstance(reply, Begun):
        run.leases = _leases(run, asked, reply.fences, interrupt)
    if not isinstance(reply, Redelivered) and ended_well():
        return _begun_again(guard, run, asked)
    if isinstance(reply, Begun):
        return _begun(guard, run, reply.delay)
    if reply is None:
        return _begun(guard, run)
    return _refused(guard, run, asked, _verdict(run, asked, reply, delay))


def _asked(guard: Guard, run: Run, delay: float) -> list[tuple[Policy, BeginAsk]]:
    """What the start asks of the stores, by policy."""
    policies, ticket = run.policies, run.ticket
    back = any(verdicts.may_wait(policy, ticket) for policy in policies if not policy.observe)
    slots = ticket.slots or (0,) * len(policies)
    asked = []
    for policy, key, slot in zip(policies, ticket.keys, slots, strict=True):
        rate = _rate(guard, run, policy, key, slot)
        if ask := verdicts.begin_ask(policy, key, delay, comes_back=back, rate=rate):
            asked.append((policy, ask))
    return asked


def _rate(guard: Guard, run: Run, policy: Policy, key: str, slot: int) -> RateAsk | None:
    """The rate that the start is to keep; ``None`` where its function fails, for no task is lost for that."""
    if policy.rate is None:
        return None
    try:
        rate = rate_of(policy.rate, run.call, key)
    except Exception as error:
        logger.exception("%s[%s] runs without its rate", run.call.task, run.call.task_id)
        reason = f"{type(error).__name__}: {error}"
        guard.reports.unprotected(run.call.task, run.call.task_id, "start", reason)
        return None
    return verdicts.rate_ask(policy, rate, slot, run.ticket)


def _ask(guard: Guard, run: Run, asked: list[tuple[Policy, BeginAsk]], delay: float) -> Begun | Denial | None:
    """What the stores reply once locks that only observe and refuse are taken out of ``asked``.

    These are not to keep the run from its others, nor are those of a store that is away, if the run goes on
    without them. ``None`` where none is left. Raises ``StoreUnavailable`` where no store is left, or the run
    may not go on.
    """
    while asked:
        try:
            reply = guard.ask(guard.store.begin, asked, run.attempt)
        except StoreUnavailable as error:
            left = [pair for pair in asked if pair[0].store != error.store]
            if not left or not guard.goes_on(error, run.call, run.policies, "start"):
                raise
            asked[:] = left
            continue
        if isinstance(reply, Begun):
            return reply
        left = [pair for i, pair in enumerate(asked) if not (pair[0].observe and _refuses(reply, i))]
        if len(left) == len(asked):
            return reply
        verdict = _verdict(run, asked, reply, delay)
        guard.reports.refused(run.call, verdict, observed=True)
        run.would_be = run.would_be or verdict
        asked[:] = left
    return None


def _refuses(reply: Denial, index: int) -> bool:
    return isinstance(reply, Over) or reply.index == index


def _leases(
    run: Run,
    asked: Sequence[tuple[Policy, BeginAsk]],
    fences: Sequence[int],
    interrupt: Callable[[], Callable[[], None]],
) -> tuple[Lease, ...]:
    return tuple(
        Lease(
            ask.key, run.attempt.token, fence, policy.lease, run.call.task, run.call.task_id,
            interrupt() if policy.on_lease_lost == "terminate" and not policy.observe else None,
        )
        for (policy, ask), fence in zip(asked, fences, strict=True)
        if ask.slot
    )  # fmt: skip


def _begun(guard: Guard, run: Run, delay: int = 0) -> Run:
    if run.leases:
        guard.heartbeat.hold(run.leases)
        keys = tuple(lease.key for lease in run.leases)
        fences = tuple(lease.fence for lease in run.leases)
        guard.reports.taken(run.call, "running", keys, fences)
    if delay:
        time.sleep(delay / 1000)  # Its start is counted for then.
    return run


def _begun_again(guard: Guard, run: Run, asked: Sequence[tuple[Policy, BeginAsk]]) -> Run | Refusal:
    verdict = _report(guard, run, AGAIN)
    if verdict is run:
        return _begun(guard, run)
    if run.leases:
        finish(guard, run, "succeeded")
    else:
        guard.withdraw([ask.key for _, ask in asked if ask.hold], run.call.task_id)
    return verdict


def _verdict(
    run: Run,
    asked: Sequence[tuple[Policy, BeginAsk]],
    reply: Denial,
    delay: float,
) -> Refusal:
    if isinstance(reply, Over):
        return Quiet("another copy of this message has ended well, or its retry is under way")
    if isinstance(reply, Redelivered):
        return verdicts.wait(run.ticket, delay, "another copy of this task still runs")
    policy, ask = asked[reply.index]
    if isinstance(reply, Exceeded):
        call = run.call
        return Poison(DeliveryLimitExceeded(call.task, call.task_id, reply.deliveries, ask.deliveries))
    if isinstance(reply, Later):
        promised = run.ticket.promised | {
            one.key: slot for (_, one), slot in zip(asked, reply.slots, strict=True)
        }
        return verdicts.on_rate(policy, ask.key, run.call.task, reply.wait, run.ticket, promised)
    return verdicts.on_conflict(policy, ask.key, run.call.task, reply.holders, run.ticket, delay)


def _refused(guard: Guard, run: Run, asked: Sequence[tuple[Policy, BeginAsk]], verdict: Refusal) -> Refusal:
    kept = any(ask.hold for _, ask in asked) or any(policy.traits.periodic for policy in run.policies)
    promised = run.ticket.promised
    if isinstance(verdict, Poison) or ((kept or promised) and isinstance(verdict, (Skip, Raise))):
        guard.withdraw(run.ticket.keys, run.call.task_id, slots=promised)
    guard.reports.refused(run.call, verdict, observed=False)
    return verdict


def _begin_without_store(guard: Guard, error: StoreUnavailable, run: Run, delay: float) -> Run | Refusal:
    if guard.goes_on(error, run.call, run.policies, "start"):
        return run
    if run.ticket.waited < max(policy.wait_limit for policy in run.policies):
        return _report(guard, run, verdicts.wait(run.ticket, delay, "the claim store does not answer"))
    guard.withdraw(run.ticket.keys, run.call.task_id, slots=run.ticket.promised)
    return _report(guard, run, Raise(StoreUnavailable(str(error)), str(error)))


def _report(guard: Guard, run: Run, verdict: Refusal) -> Run | Refusal:
    observed = all(policy.observe for policy in run.policies)
    guard.reports.refused(run.call, verdict, observed=observed)
    return run if observed else verdict


def finish(guard: Guard, run: Run, ending: Ending) -> None:
    """End a run that was let through. Never changes the task's outcome; what fails is tried again."""
    guard.heartbeat.drop(run.leases)
    tokens = {lease.key: lease.token for lease in run.leases}
    asks = [
        ask
        for policy, key in zip(run.policies, run.ticket.keys, strict=True)
        if (ask := verdicts.finish_ask(policy, key, tokens.get(key, ""), ending, run.retry_in or 0.0))
    ]
    if not asks:
        return
    keys = tuple(ask.key for ask in asks)
    for some in guard.store.split(dict.fromkeys(keys)):
        _release(guard, run, ending, [ask for ask in asks if ask.key in some])
    guard.reports.released(run.call, keys, ending)


def _release(guard: Guard, run: Run, ending: Ending, asks: Sequence[FinishAsk]) -> None:
    # Late, the retry may have come and gone: what has no slot to show claims nothing for it.
    late = [ask for ask in asks if ask.token or ask.outcome != "queued"]
    lives = max((lease.seconds for lease in run.leases), default=RELEASED_WITHIN)
    # What outlives the lease is worth more tries: the mark of work done, a claim that was never ended.
    within = lives if all(ask.outcome in ("free", "queued") for ask in late) else RELEASED_WITHIN
    guard.release(
        lambda: _give_up(guard, run, ending, asks),
        within,
        lambda: _give_up(guard, run, ending, late, late=True),
    )


def _give_up(
    guard: Guard, run: Run, ending: Ending, asks: Sequence[FinishAsk], *, late: bool = False
) -> None:
    attempt = replace(run.attempt, generation=run.attempt.generation + (ending == "retried"))
    found = guard.store.finish(asks, attempt, well=ending in ("succeeded", "ignored", "retried"))
    for ask, mine in zip(asks, found, strict=True):
        # Late, a slot that is gone may be the one that the first try has freed, its answer lost.
        if not (mine or late):
            guard.reports.ended_without(run.call, ask.key, ending)
