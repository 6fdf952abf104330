"""What would happen to a call now, in one sentence: to its publish, and to its start. Pure.

The records are a copy, asked with the very asks and transitions that a publish and a start go through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from celery_dedupe.core import transitions, verdicts
from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk, Later, Refused
from celery_dedupe.core.call import Call
from celery_dedupe.core.durations import about, spoken
from celery_dedupe.core.parts import Holder
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rates import rate_of
from celery_dedupe.core.record import Record
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.core.verdicts import Skip, Wait

Ask = TypeVar("Ask", ClaimAsk, BeginAsk)
Who = TypeVar("Who", Caller, Attempt)
Reply = TypeVar("Reply")

GETS = {"existing": "{}'s result", "none": "None", "raise": "DuplicateTask"}


@dataclass(frozen=True, slots=True)
class Forecast:
    """``goes``: the call would be sent, or would run. ``sentence`` says so, or why not and what instead.

    ``by`` is the key of the lock that refuses.
    """

    goes: bool
    sentence: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known at the moment of the question.

    Attributes:
        call: with an id that nobody has.
        policies, keys: the call's, a key for each policy.
        book: the records under these keys.
        states: final states of the results of runs that hold a slot, by the run's token.
        now: the store's clock, in microseconds.
    """

    call: Call
    policies: Sequence[Policy]
    keys: Sequence[str]
    book: Mapping[str, Record]
    states: Mapping[str, str | None]
    now: int


def publish(scene: Scene) -> Forecast:
    """Whether the call would be sent if it were published now."""
    return _judged(scene, _publish, "would be sent")


def start(scene: Scene) -> Forecast:
    """Whether a message of the call would run if a worker took it now."""
    return _judged(scene, _start, "would run")


def _publish(scene: Scene) -> Forecast:
    pairs = list(zip(scene.policies, scene.keys, strict=True))
    asked = [(policy, ask) for policy, key in pairs if (ask := verdicts.claim_ask(policy, key, scene.call))]
    if not asked:
        return Forecast(True, f"would be sent: {_no_lock(scene)} refuses a publish")
    reply = _ask(transitions.claim, asked, Caller(scene.call.task_id), scene)
    if reply is None:
        until = " and ".join(dict.fromkeys(_until(policy, ask) for policy, ask in asked))
        return Forecast(True, f"would be sent; an equal call would be its duplicate {until}")
    policy, ask = asked[reply.index]
    gets = GETS[policy.on_duplicate].format(reply.holders[0].task_id)
    what = f"would be dropped as a duplicate of {_said(reply.holders)}"
    return Forecast(False, f"{what}; its caller would get {gets}", ask.key)


def _start(scene: Scene) -> Forecast:
    ticket = Ticket(tuple(scene.keys))
    delay = verdicts.wait_delay(ticket, 0.5)
    back = any(verdicts.may_wait(policy, ticket) for policy in scene.policies)
    asked = []
    for policy, key in zip(scene.policies, scene.keys, strict=True):
        rate = None
        if policy.rate is not None:
            rate = verdicts.rate_ask(policy, rate_of(policy.rate, scene.call, key), 0, ticket)
        if ask := verdicts.begin_ask(policy, key, delay, comes_back=back, rate=rate):
            asked.append((policy, ask))
    if not any(ask.slot or ask.rate for _, ask in asked):
        return Forecast(True, f"would run: {_no_lock(scene)} keeps runs apart")
    reply = _ask(transitions.begin, asked, Attempt(scene.call.task_id, "forecast"), scene)
    if isinstance(reply, Later):
        policy, ask = asked[reply.index]
        return Forecast(False, _paced(policy, reply.wait / 1000), ask.key)
    if not isinstance(reply, Refused):
        return Forecast(True, _runs([ask for _, ask in asked]))
    policy, ask = asked[reply.index]
    verdict = verdicts.on_conflict(policy, ask.key, scene.call.task, reply.holders, ticket, delay)
    found = _said(reply.holders)
    if isinstance(verdict, Wait):
        limit = spoken(policy.wait_limit)
        return Forecast(False, f"would wait, for {limit} in all at most: in its way is {found}", ask.key)
    if isinstance(verdict, Skip):
        return Forecast(False, f"would be skipped, and end REVOKED, as a duplicate of {found}", ask.key)
    return Forecast(False, f"would end FAILURE with DuplicateTask: in its way is {found}", ask.key)


def _runs(asks: Sequence[BeginAsk]) -> str:
    leases = ", ".join(dict.fromkeys(spoken(ask.lease / 1000) for ask in asks if ask.slot))
    return f"would run, and hold its lock to its end by a lease of {leases}" if leases else "would run"


def _paced(policy: Policy, seconds: float) -> str:
    """What a rate makes of a start that is not free for so long."""
    what = {
        "wait": "would wait for a slot of its own",
        "skip": "would be skipped, and end REVOKED",
        "raise": "would end FAILURE with RateExceeded",
    }[policy.on_conflict]
    return f"{what}: its rate has a start free in {seconds:.1f} s"


def _judged(scene: Scene, judge: Callable[[Scene], Forecast], all_the_same: str) -> Forecast:
    """What ``judge`` says where a lock that only observes is not asked if it refuses, as the guard has it."""
    forecast = judge(scene)
    pairs = list(zip(scene.policies, scene.keys, strict=True))
    if not any(policy.observe and key == forecast.by for policy, key in pairs):
        return forecast
    left = [(policy, key) for policy, key in pairs if key != forecast.by]
    others = replace(scene, policies=[policy for policy, _ in left], keys=[key for _, key in left])
    without = _judged(others, judge, all_the_same)
    if not without.goes:
        return without
    said = f"{all_the_same} all the same, for the lock only observes; enforced, it {forecast.sentence}"
    return Forecast(True, said)


def _no_lock(scene: Scene) -> str:
    return "no lock of its rule" if scene.policies else "no rule"


def _ask(
    verb: Callable[[Any, Sequence[Ask], Who, int], tuple[Reply, Any]],
    asked: Sequence[tuple[Policy, Ask]],
    who: Who,
    scene: Scene,
) -> Reply:
    """What the verb replies; asked once more, as the guard does, where a run in the way has ended."""
    asks = [ask for _, ask in asked]
    reply, _ = verb(scene.book, asks, who, scene.now)
    if isinstance(reply, Refused):
        policy, ask = asked[reply.index]
        done, over = verdicts.settled(policy, reply.holders, scene.states)
        book = scene.book
        for holder in done:
            mark = verdicts.finish_ask(policy, ask.key, holder.token, "succeeded", 0.0)
            attempt = Attempt(holder.task_id, holder.token)
            _, changes = transitions.finish(book, [mark] if mark else [], attempt, True, scene.now)
            book = {**book, **changes}
        if done or over:
            reply, _ = verb(book, asks, replace(who, ended=tuple(holder.token for holder in over)), scene.now)
    return reply


def _until(policy: Policy, ask: ClaimAsk) -> str:
    """For how long a claim that was granted keeps equal calls out."""
    if policy.traits.periodic:
        return f"for {spoken(ask.ttl / 1000)}"
    if policy.traits.remembers:
        return f"to its end, and {_for(policy.keep)} after a success"
    return "to its end" if "running" in ask.blocked_by else "until it starts"


def _said(holders: Sequence[Holder]) -> str:
    """Who is in the way, and for how long."""
    first, others = holders[0], len(holders) - 1
    more = f" (and {others} more)" if others else ""
    left = None if first.expires_in is None else first.expires_in / 1000
    unless = " unless it renews its lease" if first.state == "running" else ""
    return f"{first.task_id}{more}, which is {first.state} {_for(left)}{unless}"


def _for(seconds: float | None) -> str:
    return "for ever" if seconds is None else f"for {about(seconds)}"
