"""The shell: asks the store, lets pure functions decide, and tells what came of it. No Celery, no Redis."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    Begun,
    Caller,
    ClaimAsk,
    Exceeded,
    FinishAsk,
    LeaseAsk,
    Over,
    Redelivered,
    Refused,
)
from celery_dedupe.core.call import Call
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.core.verdicts import Duplicate, Ending, Poison, Quiet, Raise, Refusal, Skip
from celery_dedupe.errors import DeliveryLimitExceeded, StoreUnavailable
from celery_dedupe.heartbeat import Heartbeat, Lease
from celery_dedupe.reports import Reports
from celery_dedupe.store.breaker import Breaker
from celery_dedupe.store.protocol import Store

RELEASED_WITHIN = 3600.0  # seconds that a release is tried for: as long as a queued claim lives by default

Policies = Sequence[Policy]


@dataclass(frozen=True, slots=True)
class Drop:
    """A publish is a duplicate; ``policy`` says what the caller gets."""

    policy: Policy
    duplicate: Duplicate


@dataclass(slots=True)
class Run:
    """A run that was let through, with what it holds.

    ``retry_in`` is set, in seconds, when its body sends its own retry.
    """

    call: Call
    ticket: Ticket
    policies: Policies
    attempt: Attempt
    leases: tuple[Lease, ...] = ()
    retry_in: float | None = None


class Guard:
    """Rules on claims, runs and ends for one app.

    Arguments:
        store: where claims live.
        observe: reach and report every verdict, refuse and delay nothing.
        app: the sender of events.
        state_of: gives the final state of a task whose result was stored at or after a date (the worker's
            own clock, ms), or ``None``. Asked only where a running incumbent is in the way.
    """

    def __init__(
        self, store: Store, *, observe: bool, app: Any, state_of: Callable[[str, int], str | None]
    ) -> None:
        self.store = store
        self.breaker = Breaker()
        self.reports = Reports(app, observe=observe)
        self.heartbeat = Heartbeat(self._renew, self.reports.lost)
        self.observe = observe
        self._state_of = state_of

    def claim(self, call: Call, policies: Policies, ticket: Ticket, *, attended: bool = True) -> Drop | bool:
        """Claim a call's locks for its publish. ``False``: it goes out and certainly holds no claim.

        Raises ``StoreUnavailable`` if the store is away and a policy refuses to go on without it; one that
        keeps runs apart leaves that to the start if nobody attends to the publish. What it raises leaves no
        claim.
        """
        pairs = zip(policies, ticket.keys, strict=True)
        asked = [(policy, ask) for policy, key in pairs if (ask := verdicts.claim_ask(policy, key, call))]
        if not asked:
            return False
        keys = tuple(ask.key for _, ask in asked)
        sent = False

        def send(caller: Caller) -> Refused | None:
            nonlocal sent
            sent = True
            return self.store.claim([ask for _, ask in asked], caller)

        caller = Caller(call.task_id, ticket.successor_of, ticket.generation)
        try:
            reply = self.breaker.call(lambda: send(caller))
            if reply and (over := self._settle(reply, *asked[reply.index])) is not None:
                reply = self.breaker.call(lambda: send(replace(caller, ended=over)))
        except BaseException as error:
            refusing = [policy for policy in policies if attended or not policy.traits.runs]
            if isinstance(error, StoreUnavailable) and self._goes_on(error, call, refusing, "publish"):
                return sent
            if sent:
                # It may have been granted and only the answer lost, by a timeout or an interrupt.
                self.withdraw(keys, call.task_id)
            raise
        if reply is not None:
            return self._duplicate(call, ticket, asked[reply.index][0], keys[reply.index], reply)
        self.reports.taken(call, "queued", keys)
        return True

    def claim_retry(self, call: Call, policies: Policies, ticket: Ticket) -> tuple[str, ...]:
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
                self.breaker.call(lambda: self.store.claim(asks, caller))
            except StoreUnavailable as error:
                self.reports.unprotected(call.task, call.task_id, "publish", str(error))
            except BaseException:
                self.withdraw(keys, call.task_id)
                raise
        return keys

    def withdraw(self, keys: Sequence[str], task_id: str, *, running: bool = False) -> None:
        """Give a task's claims back; if the store is away, later."""
        if keys:
            self._release(lambda: self.store.withdraw(keys, task_id, running=running), RELEASED_WITHIN)

    def begin(
        self,
        call: Call,
        policies: Policies,
        ticket: Ticket,
        node: str,
        interrupt: Callable[[], Callable[[], None]],
        *,
        ended_well: bool = False,
    ) -> Run | Refusal:
        """Take a call's running slots for its start, or say what becomes of it instead.

        ``interrupt`` makes what stops the calling thread's task; it is for ``on_lease_lost="terminate"``.
        ``ended_well``: an earlier delivery of the message is known to have.
        """
        attempt = Attempt(
            call.task_id, secrets.token_hex(8), ticket.nonce, ticket.generation, node, int(time.time() * 1000)
        )
        run = Run(call, ticket, policies, attempt)
        if ended_well:
            return self._report(run, Quiet("an earlier delivery of this message has ended well"))
        delay = verdicts.wait_delay(ticket, random.random())
        pairs = zip(policies, ticket.keys, strict=True)
        back = not self.observe and any(verdicts.may_wait(policy, ticket) for policy in policies)
        asked = [(p, ask) for p, key in pairs if (ask := verdicts.begin_ask(p, key, delay, comes_back=back))]
        if not asked:
            return run
        asks = [ask for _, ask in asked]
        try:
            reply = self.breaker.call(lambda: self.store.begin(asks, attempt))
            if isinstance(reply, Refused) and (over := self._settle(reply, *asked[reply.index])) is not None:
                again = replace(attempt, ended=over)
                reply = self.breaker.call(lambda: self.store.begin(asks, again))
        except StoreUnavailable as error:
            return self._begin_without_store(error, run, delay)
        if isinstance(reply, Begun):
            return self._begun(run, asked, reply.fences, interrupt)
        return self._refused(run, asked, reply, delay)

    def finish(self, run: Run, ending: Ending) -> None:
        """End a run that was let through. Never changes the task's outcome; what fails is tried again."""
        self.heartbeat.drop(run.leases)
        tokens = {lease.key: lease.token for lease in run.leases}
        asks = [
            ask
            for policy, key in zip(run.policies, run.ticket.keys, strict=True)
            if (ask := verdicts.finish_ask(policy, key, tokens.get(key, ""), ending, run.retry_in or 0.0))
        ]
        if not asks:
            return
        # Late, the retry may have come and gone: what has no slot to show claims nothing for it.
        late = [ask for ask in asks if ask.token or ask.outcome != "queued"]
        lives = max((lease.seconds for lease in run.leases), default=RELEASED_WITHIN)
        # What outlives the lease is worth more tries: the mark of work done, a claim that was never ended.
        within = lives if all(ask.outcome in ("free", "queued") for ask in late) else RELEASED_WITHIN
        self._release(
            lambda: self._give_up(run, ending, asks),
            within,
            lambda: self._give_up(run, ending, late, late=True),
        )
        keys = tuple(ask.key for ask in asks)
        self.reports.released(run.call, keys, ending)

    def _give_up(self, run: Run, ending: Ending, asks: Sequence[FinishAsk], *, late: bool = False) -> None:
        attempt = replace(run.attempt, generation=run.attempt.generation + (ending == "retried"))
        found = self.store.finish(asks, attempt, well=ending in ("succeeded", "ignored", "retried"))
        for ask, mine in zip(asks, found, strict=True):
            # Late, a slot that is gone may be the one that the first try has freed, its answer lost.
            if not (mine or late):
                self.reports.ended_without(run.call, ask.key, ending)

    def abandon(self) -> None:
        """Free the slots this process still holds: its runs were cut short by the worker's shutdown."""
        for lease in self.heartbeat.held():
            self.heartbeat.drop((lease,))
            self.withdraw((lease.key,), lease.task_id, running=True)
        self.heartbeat.stop()

    def close(self) -> None:
        """Stop renewing and let go of the store."""
        self.heartbeat.stop()
        self.store.close()

    def _settle(self, reply: Refused, policy: Policy, ask: ClaimAsk | BeginAsk) -> tuple[str, ...] | None:
        """Ask the result backend of runs in the way whose end has not reached the record.

        Celery stores a result before ``task_postrun``, so whoever saw it may call again too soon; and the
        process may be killed in between, its work done for good. Returns the tokens of those that are over,
        to ask the store again with; ``None`` if its reply stands.
        """
        over, done = [], []
        for holder in reply.holders:
            lapsed = holder.state == "lapsed"
            state = self._state_of(holder.task_id, holder.started) if holder.token else None
            if policy.traits.remembers and state == "SUCCESS":
                done += [holder] if lapsed else []
            elif state or lapsed:
                over.append(holder.token)
        for holder in done:
            mark = verdicts.finish_ask(policy, ask.key, holder.token, "succeeded", 0.0)
            attempt = Attempt(holder.task_id, holder.token)
            self.breaker.call(partial(self.store.finish, [mark] if mark else [], attempt, well=True))
        return tuple(over) if over or done else None

    def _duplicate(self, call: Call, ticket: Ticket, policy: Policy, key: str, reply: Refused) -> Drop | bool:
        found = verdicts.duplicate(reply.holders[0], call.task, key)
        published = self.observe or verdicts.must_publish(policy, ticket)
        self.reports.dropped(call, policy.lock, found, published=published)
        return False if published else Drop(policy, found)

    def _begun(
        self,
        run: Run,
        asked: Sequence[tuple[Policy, BeginAsk]],
        fences: Sequence[int],
        interrupt: Callable[[], Callable[[], None]],
    ) -> Run:
        call, token = run.call, run.attempt.token
        held = [(p, ask.key, fence) for (p, ask), fence in zip(asked, fences, strict=True) if ask.slot]
        if held:
            run.leases = tuple(
                Lease(
                    key, token, fence, policy.lease, call.task, call.task_id,
                    interrupt() if policy.on_lease_lost == "terminate" else None,
                )
                for policy, key, fence in held
            )  # fmt: skip
            self.heartbeat.hold(run.leases)
            keys = tuple(key for _, key, _ in held)
            taken = tuple(fence for _, _, fence in held)
            self.reports.taken(call, "running", keys, taken)
        return run

    def _refused(
        self,
        run: Run,
        asked: Sequence[tuple[Policy, BeginAsk]],
        reply: Refused | Redelivered | Exceeded | Over,
        delay: float,
    ) -> Run | Refusal:
        verdict: Refusal
        if isinstance(reply, Over):
            verdict = Quiet("another copy of this message has ended well, or its retry is under way")
        elif isinstance(reply, Redelivered):
            verdict = verdicts.wait(run.ticket, delay, "another copy of this task still runs")
        elif isinstance(reply, Exceeded):
            limit, call = asked[reply.index][1].deliveries, run.call
            verdict = Poison(DeliveryLimitExceeded(call.task, call.task_id, reply.deliveries, limit))
            if not self.observe:
                self.withdraw(run.ticket.keys, call.task_id)
        else:
            policy, ask = asked[reply.index]
            verdict = verdicts.on_conflict(policy, ask.key, run.call.task, reply.holders, run.ticket, delay)
            kept = any(ask.hold for _, ask in asked) or any(policy.traits.periodic for policy in run.policies)
            if kept and isinstance(verdict, (Skip, Raise)) and not self.observe:
                self.withdraw(run.ticket.keys, run.call.task_id)
        return self._report(run, verdict)

    def _begin_without_store(self, error: StoreUnavailable, run: Run, delay: float) -> Run | Refusal:
        if self._goes_on(error, run.call, run.policies, "start"):
            return run
        if run.ticket.waited < max(policy.wait_limit for policy in run.policies):
            return self._report(run, verdicts.wait(run.ticket, delay, "the claim store does not answer"))
        self.withdraw(run.ticket.keys, run.call.task_id)
        return self._report(run, Raise(None, str(error)))

    def _goes_on(
        self, error: StoreUnavailable, call: Call, policies: Policies, stage: Literal["publish", "start"]
    ) -> bool:
        if not self.observe and any(policy.on_store_error == "refuse" for policy in policies):
            return False
        self.reports.unprotected(call.task, call.task_id, stage, str(error))
        return True

    def _report(self, run: Run, verdict: Refusal) -> Run | Refusal:
        self.reports.refused(run.call, verdict)
        return run if self.observe else verdict

    def _release(
        self, send: Callable[[], None], within: float, late: Callable[[], None] | None = None
    ) -> None:
        try:
            self.breaker.call(send)
        except StoreUnavailable:
            again = late or send
            self.heartbeat.release_later(lambda: self.breaker.call(again), within)

    def _renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        # Not through the breaker: it is one call an interval, and a pause of 5 s would cost a short lease.
        return self.store.renew(asks)
