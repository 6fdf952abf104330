"""A publish: its locks are claimed, or it is a duplicate and does not go out."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import Caller, ClaimAsk, Refused
from celery_dedupe.core.call import Call
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.core.verdicts import Duplicate
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.guard import Guard, Policies
from celery_dedupe.store.breaker import Skipped


@dataclass(frozen=True, slots=True)
class Drop:
    """A publish is a duplicate; ``policy`` says what the caller gets.

    ``observed``: it is told and goes out all the same.
    """

    policy: Policy
    duplicate: Duplicate
    observed: bool = False


def claim(
    guard: Guard, call: Call, policies: Policies, ticket: Ticket, *, attended: bool = True
) -> Drop | bool:
    """Claim a call's locks for its publish. ``False``: it goes out and certainly holds no claim.

    Raises ``StoreUnavailable`` if the store is away and a policy refuses to go on without it; one that
    keeps runs apart leaves that to the start if nobody attends to the publish. What it raises leaves no
    claim.
    """
    pairs = zip(policies, ticket.keys, strict=True)
    asked = [(policy, ask) for policy, key in pairs if (ask := verdicts.claim_ask(policy, key, call))]
    refusing = [policy for policy in policies if attended or not policy.traits.runs]
    drop: Drop | None = None
    while asked:
        reply = _ask(guard, call, refusing, ticket, asked)
        if not isinstance(reply, Refused):
            return drop or reply
        # A lock that only observes is not to keep the others from theirs.
        policy, ask = asked.pop(reply.index)
        found = verdicts.duplicate(reply.holders[0], call.task, ask.key)
        awaited = verdicts.must_publish(policy, ticket)
        guard.reports.dropped(call, policy.traits.name, found, published=awaited or policy.observe)
        if not policy.observe:
            return False if awaited else Drop(policy, found)
        if not awaited:
            drop = drop or Drop(policy, found, observed=True)
    return drop or False


def _ask(
    guard: Guard,
    call: Call,
    refusing: Policies,
    ticket: Ticket,
    asked: list[tuple[Policy, ClaimAsk]],
) -> Refused | bool:
    """The stores' refusal; else whether one may have granted, which without an answer is not known.

    The locks of a store that is away, and without which the call goes on, are taken out of ``asked``.
    """
    keys = tuple(ask.key for _, ask in asked)
    caller = Caller(call.task_id, ticket.successor_of, ticket.generation)
    try:
        reply = guard.ask(guard.store.claim, asked, caller)
    except BaseException as error:
        sent = not isinstance(error, Skipped)
        if isinstance(error, StoreUnavailable) and guard.goes_on(error, call, refusing, "publish"):
            lost = tuple(ask.key for policy, ask in asked if policy.store == error.store)
            asked[:] = [pair for pair in asked if pair[0].store != error.store]
            rest = _ask(guard, call, refusing, ticket, asked) if asked else False
            if isinstance(rest, Refused) and sent:
                guard.withdraw(lost, call.task_id)  # For it may have been granted there.
            return rest or sent
        if sent:
            # It may have been granted and only the answer lost, by a timeout or an interrupt.
            guard.withdraw(keys, call.task_id)
        raise
    if reply is None:
        guard.reports.taken(call, "queued", keys)
    return reply or True


def claim_retry(guard: Guard, call: Call, policies: Policies, ticket: Ticket) -> tuple[str, ...]:
    """Claim for a retry what the end of its run does not leave to it. Never refused, never an error.

    Returns the keys, to be withdrawn if the publish fails.
    """
    pairs = zip(policies, ticket.keys, strict=True)
    asks = [ask for policy, key in pairs if (ask := verdicts.retry_ask(policy, key, call))]
    keys = tuple(ask.key for ask in asks)
    if asks:
        # The attempt that publishes its retry is over as far as copies of its message are concerned.
        caller = Caller(call.task_id, generation=ticket.generation + 1)
        try:
            guard.store.claim(asks, caller)
        except StoreUnavailable as error:
            guard.reports.unprotected(call.task, call.task_id, "publish", str(error))
        except BaseException:
            guard.withdraw(keys, call.task_id)
            raise
    return keys
