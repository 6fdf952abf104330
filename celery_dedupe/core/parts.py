"""What a record is made of: one value for each thing that is known under a lock's key.

Times are whole milliseconds of the store's own clock; ``0`` as an expiry means never.
"""

from __future__ import annotations

from dataclasses import dataclass

FOREVER = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """A task that was published and has not started: it waits in the broker, for its eta or for a retry.

    Attributes:
        generation: attempts of a lower one are known to be over, so a late copy of one is stale.
        since: when it came into the queue, for people to see; nothing is decided by it.
    """

    task_id: str
    expires_at: int
    generation: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """One run that holds a slot until its lease ends.

    Attributes:
        token: names this run and no other; whoever renews or frees the slot must know it.
        nonce: names the message the run came from: a redelivery has the same one, a retry another.
        fence: grows with every slot given under this key, whatever was deleted or expired in between: it is
            the store's clock in microseconds, or one more than the highest in use. Only a clock that is set
            back (a failover to a server whose clock is behind) can break the order.
        generation: how many messages went out under the task id before, so that a stale copy of an earlier
            attempt is known as such.
        node: the worker that runs it.
        started: the worker's own wall clock at the start, to compare with the worker's own result dates only.
        marked_until: a second copy of the message waits; until then a good end leaves an ``Ended`` mark.
    """

    token: str
    task_id: str
    nonce: str
    fence: int
    generation: int
    node: str
    started: int
    expires_at: int
    marked_until: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done once, at ``since``, and is remembered."""

    task_id: str
    expires_at: int
    since: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Tells a waiting second copy of a message that the first one ended well. It blocks nobody else.

    Without a task id it tells the run whose token is its nonce that its slot was ended for it, since its
    result was final: that is no lost lease.
    """

    task_id: str
    nonce: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A run of work that is to be done once has begun. It outlives a lease that ends unrenewed, so that the
    next to come asks how the run of a dead process ended. It blocks nobody who knows."""

    task_id: str
    token: str
    started: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """How often one message has started, for as long as no start of it has come to an end."""

    task_id: str
    nonce: str
    count: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Starts under a rate, and slots promised to those who wait, in microseconds of the store's clock.

    Attributes:
        starts: those of one window, earliest first, and always the last.
        window: the longest that anybody has asked for.
        tail: the last slot that was promised.
        gap: between it and the one before.
        freed: promised slots that were given back, earliest first.
    """

    starts: tuple[int, ...]
    window: int
    tail: int
    gap: int
    freed: tuple[int, ...]
    expires_at: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is in the way, as told to the one that was refused.

    Attributes:
        state: ``"queued"``, ``"running"``, ``"done"``, or ``"lapsed"``: its lease is dead, its end not known.
        expires_in: milliseconds until the part ends unless renewed; ``None`` if it never does.
        token, started: of a run; empty and 0 otherwise.
    """

    state: str
    task_id: str
    expires_in: int | None
    token: str = ""
    started: int = 0
