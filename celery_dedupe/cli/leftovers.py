"""Claims that no worker will ever free: their messages are gone, or no rule knows them any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_dedupe.cli.asking import Answers, ask, waiting
from celery_dedupe.cli.claims import Claims
from celery_dedupe.core.findings import Finding, named
from celery_dedupe.core.holdings import holdings
from celery_dedupe.core.policy import Policy
from celery_dedupe.extension import Dedupe

MOST = 100_000  # task ids that are told apart; of more, that many are counted


@dataclass(slots=True)
class Census:
    """What one walk over the claims finds.

    Attributes:
        queued: task ids of claims that end with a start, by which a message of each must be somewhere.
        scopes: how many claims of each scope they are.
        forever: marks of work done that are kept for ever though no rule says so, by scope.
    """

    queued: set[str] = field(default_factory=set)
    scopes: Counter[str] = field(default_factory=Counter)
    forever: Counter[str] = field(default_factory=Counter)


def leftovers(dedupe: Dedupe, claims: Claims, answers: Answers | None, timeout: float) -> list[Finding]:
    """Look for them. Without answers of all workers nothing is said of messages.

    Raises ``StoreUnavailable`` and ``BrokerAway``.
    """
    census, missing = _look(dedupe, claims, answers, timeout)
    if missing > 0:
        # Messages move while they are counted: what is missing now and then is not missing.
        again = _look(dedupe, claims, answers, timeout)
        census, missing = min((census, missing), again, key=lambda look: look[1])
    return [*_without_message(census, missing), *_for_ever(census)]


def _look(dedupe: Dedupe, claims: Claims, answers: Answers | None, timeout: float) -> tuple[Census, int]:
    # The messages first: each claim that is older, and is still there afterwards, had its message by then.
    at = claims.now
    messages = None if answers is None else _messages(dedupe, answers, timeout)
    census = _census(dedupe, claims, at)
    return census, 0 if messages is None else len(census.queued) - messages


def _messages(dedupe: Dedupe, answers: Answers, timeout: float) -> int | None:
    """How many messages there are, in queues and at workers; ``None`` where that cannot be told."""
    if not _all_tell(dedupe, answers):
        return None
    queues = {queue.name: queue for queue in dedupe.app.amqp.queues.values()}
    if any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in queues.values()):
        return None  # Celery delays their messages in queues of its own.
    names = {*queues, *(name for worker in answers.workers for name in worker.queues)}
    # The workers last, for messages move on from queues to them.
    in_queues, now = waiting(dedupe.app, names), ask(dedupe.app, timeout, expected=answers.count)
    return in_queues + sum(worker.messages for worker in now.workers) if _all_tell(dedupe, now) else None


def _all_tell(dedupe: Dedupe, answers: Answers) -> bool:
    return bool(answers.workers) and not answers.failed and not answers.without(dedupe.guarded())


def _census(dedupe: Dedupe, claims: Claims, at: int) -> Census:
    census = Census()
    known = _Scopes(dedupe)
    for _, key, record in claims.records():
        scope = claims.scope(key) or ""
        for part in holdings(record):
            if part.state == "queued" and part.since < at and known.ends_with_a_start(scope):
                if len(census.queued) < MOST:
                    census.queued.add(part.task_id)
                    census.scopes[scope] += 1
            elif part.state == "done" and part.expires_at is None and not known.keeps_for_ever(scope):
                census.forever[scope] += 1
    return census


class _Scopes:
    """Which policies make keys of a scope: those of the tasks here, and of rules for a task of that name."""

    def __init__(self, dedupe: Dedupe) -> None:
        self._dedupe = dedupe
        self._known: dict[str, Sequence[Policy]] = {}
        for name in dedupe.app.tasks:
            for policy in dedupe.match(name).policies:
                scope = policy.scope or name
                self._known[scope] = (*self._known.get(scope, ()), policy)

    def ends_with_a_start(self, scope: str) -> bool:
        """Whether a queued claim of that scope has a message; that of a period outlives it."""
        policies = self._of(scope)
        return bool(policies) and not any(policy.traits.periodic for policy in policies)

    def keeps_for_ever(self, scope: str) -> bool:
        """Whether a rule says so."""
        return any(policy.traits.remembers and policy.keep is None for policy in self._of(scope))

    def _of(self, scope: str) -> Sequence[Policy]:
        if scope not in self._known:
            found = self._dedupe.match(scope).policies
            self._known[scope] = tuple(policy for policy in found if policy.scope is None)
        return self._known[scope]


def _without_message(census: Census, missing: int) -> list[Finding]:
    if missing <= 0:
        return []
    return [
        Finding(
            "warning",
            f"at least {missing:,} queued claims have no message, in no queue that is known here and at no "
            "worker: a queue was purged, or a worker has died with what it had fetched. They are of "
            f"{named(census.scopes)}. They run out by themselves, or go at once by "
            "`dedupe release --task GLOB --state queued`",
        )
    ]


def _for_ever(census: Census) -> list[Finding]:
    return [
        Finding(
            "warning",
            f"{count:,} marks of work done under {scope} are kept for ever, and no rule says so any more: "
            f"only `dedupe release --task '{scope}' --state done` removes them",
        )
        for scope, count in sorted(census.forever.items())
    ]
