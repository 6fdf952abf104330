"""What a message carries of its claim: made once by the publisher, read by whoever ends the claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

HEADER = "dedupe"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """The claim of one message.

    Attributes:
        keys: one key a policy, in the order of the task's policies.
        nonce: new with every publish; a redelivery of the message has the same one.
        override: the call's own ``dedupe=`` option, or ``None``; the worker lays it over its rules again.
        successor_of: id of the run from within which the call was made, if that run holds one of the keys.
        generation: how many messages went out under this task id before, by retries and by the task replacing
            itself; a late copy of an earlier one is known by its lower number.
        workflow: other tasks wait for this very message (chain, chord, group, callback).
        waits: how often the message has come back from a conflict at its start.
        waited: seconds it has waited for that in all, by its own delays: no clocks are compared.
        serializer: of the message, to send it again with the same one; empty for JSON.
        observed: it went out though it is a duplicate, since the lock only observes.
        slots: what was promised to the message under rates, one time of the store's clock a key, 0 for none.
        told: seconds it was told to wait for that when it was sent last; 0 if it was sent for another reason.
        paced: seconds it has waited for rates in all; they count neither as waits nor as waited.
    """

    keys: tuple[str, ...] = ()
    nonce: str = ""
    override: Any = None
    successor_of: str = ""
    generation: int = 0
    workflow: bool = False
    waits: int = 0
    waited: float = 0.0
    serializer: str = ""
    observed: bool = False
    slots: tuple[int, ...] = ()
    told: float = 0.0
    paced: float = 0.0

    def to_header(self) -> dict[str, Any]:
        """The header's value: plain JSON, without what has its default."""
        header: dict[str, Any] = {"v": VERSION, "k": list(self.keys), "n": self.nonce}
        if self.override is not None:
            header["o"] = self.override
        if self.successor_of:
            header["s"] = self.successor_of
        if self.generation:
            header["g"] = self.generation
        if self.workflow:
            header["f"] = 1
        if self.waits:
            header["w"] = [self.waits, self.waited]
        if any(self.slots):
            header["r"] = [self.told, self.paced, *self.slots]
        if self.serializer:
            header["z"] = self.serializer
        if self.observed:
            header["d"] = 1
        return header

    @property
    def promised(self) -> dict[str, int]:
        """What was promised under rates, by key."""
        return {key: slot for key, slot in zip(self.keys, self.slots, strict=False) if slot}

    def moved_to(self, keys: tuple[str, ...]) -> Ticket:
        """The ticket with its locks under other keys, where nothing was promised under rates."""
        slots = tuple(
            slot if old == new else 0 for old, new, slot in zip(self.keys, keys, self.slots, strict=False)
        )
        return replace(self, keys=keys, slots=slots)

    def as_new(self, nonce: str) -> Ticket:
        """The ticket of the message that goes out next under this task id."""
        return replace(
            self,
            generation=self.generation + 1,
            nonce=nonce,
            waits=0,
            waited=0.0,
            slots=(),
            told=0.0,
            paced=0.0,
        )


def from_headers(headers: Mapping[str, Any] | None) -> Ticket | None:
    """The ticket among a message's headers; ``None`` if there is none that this version understands."""
    header = (headers or {}).get(HEADER)
    if not isinstance(header, Mapping) or header.get("v") != VERSION:
        return None
    keys, wait = header.get("k", ()), header.get("w", (0, 0.0))
    paced = header.get("r", (0.0, 0.0))
    if not all(isinstance(value, (list, tuple)) for value in (keys, wait, paced)):
        return None
    if len(wait) != 2 or len(paced) not in (2, 2 + len(keys)):
        return None
    ticket = Ticket(
        keys=tuple(keys),
        nonce=header.get("n", ""),
        override=header.get("o"),
        successor_of=header.get("s", ""),
        generation=header.get("g", 0),
        workflow=bool(header.get("f")),
        waits=wait[0],
        waited=wait[1],
        serializer=header.get("z", ""),
        observed=bool(header.get("d")),
        slots=tuple(paced[2:]),
        told=paced[0],
        paced=paced[1],
    )
    return ticket if _sound(ticket) else None


def _sound(ticket: Ticket) -> bool:
    # Anybody may write a header of this name, and what a worker raises over it would cost the task its locks.
    texts: tuple[object, ...] = (*ticket.keys, ticket.nonce, ticket.successor_of, ticket.serializer)
    counts: tuple[object, ...] = (ticket.generation, ticket.waits, *ticket.slots)
    times: tuple[object, ...] = (ticket.waited, ticket.told, ticket.paced)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(count, int) and count >= 0 for count in counts)
        and all(isinstance(time, (int, float)) and 0 <= time < math.inf for time in times)
    )
