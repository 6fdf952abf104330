"""The shell: asks the store, lets pure functions decide, and tells what came of it. No Celery, no Redis.

Publishes are in ``claims``, starts and ends in ``runs``; here is what both act through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk, Refused
from celery_dedupe.core.call import Call
from celery_dedupe.core.policy import Policy
from celery_dedupe.counters import Counters
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.heartbeat import Heartbeat
from celery_dedupe.reports import Reports
from celery_dedupe.store.named import Stores
from celery_dedupe.store.protocol import NO_SLOTS, Store

RELEASED_WITHIN = 3600.0  # seconds that a release is tried for: as long as a queued claim lives by default

Policies = Sequence[Policy]
Ask = TypeVar("Ask", ClaimAsk, BeginAsk)
Who = TypeVar("Who", Caller, Attempt)
Reply = TypeVar("Reply")


class Guard:
    """The stores of one app, reached with care, and those who are told what comes of it.

    Arguments:
        stores: where claims live, by their names.
        counted_as: the name in the store under which verdicts are counted; ``""`` not to count them.
        app: the sender of events.
        state_of: gives the final state of a task whose result was stored at or after a date (the worker's
            own clock, ms), or ``None``. Asked only where a running incumbent is in the way.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        *,
        counted_as: str,
        app: Any,
        state_of: Callable[[str, int], str | None],
    ) -> None:
        self.store = Stores(stores)
        self.counters = Counters(self.store, counted_as)
        self.reports = Reports(app, self.counters.add)
        self.heartbeat = Heartbeat(lambda asks: self.store.renew(asks), self.reports.lost)
        self.state_of = state_of

    def ask(
        self, verb: Callable[[list[Ask], Who], Reply], asked: Sequence[tuple[Policy, Ask]], who: Who
    ) -> Reply:
        """What ``verb`` replies; asked once more where a run in the way turns out to be over.

        Raises ``StoreUnavailable``, at once while a store of theirs is known to be away.
        """
        asks = [ask for _, ask in asked]
        reply = verb(asks, who)
        if isinstance(reply, Refused):
            policy, ask = asked[reply.index]
            if (over := self._settle(reply, policy, ask.key)) is not None:
                reply = verb(asks, replace(who, ended=over))
        return reply

    def goes_on(
        self, error: StoreUnavailable, call: Call, policies: Policies, stage: Literal["publish", "start"]
    ) -> bool:
        """Whether a call goes on without its locks in the store that failed, and that is told.

        ``False`` if a policy with a lock there refuses to.
        """
        concerned = [policy for policy in policies if policy.store == error.store and not policy.observe]
        if any(policy.on_store_error == "refuse" for policy in concerned):
            return False
        self.reports.unprotected(call.task, call.task_id, stage, str(error))
        return True

    def withdraw(
        self,
        keys: Sequence[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        """Give a task's claims back, and what it was promised under rates; to a store that is away, later.

        In a store that is unknown here they run out by themselves.
        """
        for some in self.store.split(keys):
            self.release(
                partial(self.store.withdraw, some, task_id, running=running, slots=slots), RELEASED_WITHIN
            )

    def release(
        self, send: Callable[[], None], within: float, late: Callable[[], None] | None = None
    ) -> None:
        """Call ``send``; if the store is away, try ``late``, else ``send``, again for ``within`` seconds."""
        try:
            send()
        except StoreUnavailable:
            self.heartbeat.release_later(late or send, within)

    def abandon(self) -> None:
        """Free the slots this process still holds: its runs were cut short by the worker's shutdown."""
        for lease in self.heartbeat.held():
            self.heartbeat.drop((lease,))
            self.withdraw((lease.key,), lease.task_id, running=True)
        self.heartbeat.stop()
        self.counters.flush()

    def close(self) -> None:
        """Stop renewing and let go of the stores."""
        self.heartbeat.stop()
        self.counters.close()
        self.store.close()

    def _settle(self, reply: Refused, policy: Policy, key: str) -> tuple[str, ...] | None:
        """Ask the result backend of runs in the way whose end has not reached the record.

        Returns the tokens of those that are over, to ask the store again with; ``None`` if its reply stands.
        """
        states = {one.token: self.state_of(one.task_id, one.started) for one in reply.holders if one.token}
        done, over = verdicts.settled(policy, reply.holders, states)
        for holder in done:
            mark = verdicts.finish_ask(policy, key, holder.token, "succeeded", 0.0)
            attempt = Attempt(holder.task_id, holder.token)
            self.store.finish([mark] if mark else [], attempt, well=True)
        return tuple(holder.token for holder in over) if over or done else None
