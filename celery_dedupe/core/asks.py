"""What a store is asked and what it replies: plain values, the same for every store.

Durations are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_dedupe.core.parts import Holder


@dataclass(frozen=True, slots=True)
class Caller:
    """Who claims.

    Attributes:
        task_id: of the call that is about to be published.
        inside: id of the task whose body makes the call, if any: a run does not block its own successor,
            which takes over what the run still has in the queue (a claim that lives for its period).
        generation: how many messages went out under the task id before this one.
        ended: tokens of runs that are known to have ended, though their record still says "running".
    """

    task_id: str
    inside: str = ""
    generation: int = 0
    ended: tuple[str, ...] = ()

    @property
    def over(self) -> int:
        """Attempts of a lower one are over. The one before this is not: it is what publishes this call,
        and until it has ended its own message must be allowed to come back."""
        return max(0, self.generation - 1)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who starts: one run of one message of one task. The fields are those of ``Running``.

    ``generation`` must grow with every message that a run of the task sends under its own id, or the store
    takes the later one for a stale copy of an earlier.
    """

    task_id: str
    token: str
    nonce: str = ""
    generation: int = 0
    node: str = ""
    started: int = 0
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """One lock that a publish claims: for ``ttl`` ms, unless it is in one of the ``blocked_by`` states."""

    key: str
    ttl: int
    blocked_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class RateAsk:
    """One rate that a start must keep. Times are microseconds.

    Attributes:
        starts, window: so many starts in any window.
        slot: of the store's clock; what was promised to this message before, 0 for nothing.
        reserves: promise a slot if the start is not free now.
        patience: a start that is so near is given at once, and waited for in place.
        silence: after so long without a start all promises are void.
    """

    starts: int
    window: int
    slot: int
    reserves: bool
    patience: int
    silence: int


@dataclass(frozen=True, slots=True)
class BeginAsk:
    """One lock that a start needs.

    Attributes:
        slot: take one of ``limit`` running slots for ``lease`` ms; without it only the queued claim ends.
        hold: ms for which the queued claim is kept if the start is refused; 0 gives it up.
        mark: ms for which a good end is remembered for this copy, if the first copy still runs.
        remembers: a done mark stands in the way.
        trace: ms for which it is remembered that this run began, unless it is known how it ended; 0 for not.
        deliveries: so many starts of one message are let through, 0 for any number.
        counted: ms for which its starts are counted since the last one.
        rate: that the start must keep. A list has a key with a rate once.
    """

    key: str
    slot: bool
    limit: int = 1
    lease: int = 0
    hold: int = 0
    mark: int = 0
    remembers: bool = False
    trace: int = 0
    deliveries: int = 0
    counted: int = 0
    rate: RateAsk | None = None


@dataclass(frozen=True, slots=True)
class FinishAsk:
    """One lock that an ending run gives up.

    Attributes:
        token: of the slot; empty where the lock has none.
        outcome: ``"free"``; ``"done"`` (remembered for ``ttl`` ms, 0 for ever); ``"queued"`` (it will come
            back: claimed for ``ttl`` ms); ``"withdrawn"`` (a claim that outlives the run is given back too).
        deliveries: what becomes of the count of its message's starts: ``"forget"``; ``"keep"`` (the message
            will be delivered again); ``"undo"`` (the body has not begun: this start was none).

    A run whose slot is no longer its own claims nothing, and leaves a done mark only where nobody runs and no
    mark is: a release that comes late, or twice, must not hold a lock for a task that is not coming.
    """

    key: str
    token: str
    outcome: str
    ttl: int = 0
    deliveries: Literal["forget", "keep", "undo"] = "forget"


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """One running slot to prolong by ``lease`` ms from now."""

    key: str
    token: str
    lease: int


@dataclass(frozen=True, slots=True)
class EvictAsk:
    """The parts of one lock that an operator frees, by their owners: what has changed hands stays.

    Attributes:
        queued: task ids of queued claims.
        tokens: of runs, alive or lapsed.
        done: the task id of what is done; empty for none.
    """

    key: str
    queued: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    done: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock at ``index`` of the list is held by ``holders``; nothing was granted."""

    index: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """Granted. ``fences`` has one number a lock, 0 where it has no slot. It is to start in ``delay`` ms."""

    fences: tuple[int, ...]
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Redelivered:
    """A copy of this very task still runs; its lease ends in ``expires_in`` ms unless renewed."""

    index: int
    expires_in: int


@dataclass(frozen=True, slots=True)
class Exceeded:
    """This would be start ``deliveries`` of the message, which the lock at ``index`` does not let through."""

    index: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Later:
    """The rate at ``index`` has no start free before ``wait`` ms have passed.

    ``slots`` has one time a lock, 0 for none: what is promised to the message, and shown when it is back.
    """

    index: int
    wait: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """A copy of this very message ended well already, or a later attempt of it is under way."""


BeginReply = Begun | Refused | Redelivered | Exceeded | Later | Over
