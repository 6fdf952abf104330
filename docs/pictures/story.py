"""Plays one story under a lock, with the store and the verdicts of the code, and notes what happens.

The story is the same for every lock. There are five equal calls: A comes first; B while A is in the queue;
C and D while A runs; E when all is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_dedupe import Policy
from celery_dedupe.core import verdicts
from celery_dedupe.core.asks import Attempt, Begun, Caller
from celery_dedupe.core.call import Call
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.store.memory import MemoryStore

CALLS = {0: "A", 3: "B", 11: "C", 14: "D", 40: "E"}  # by the second at which each comes
IN_QUEUE = 6  # seconds until a worker takes a call
RUN = 15  # seconds that each run takes
END = 64
PERIOD = "34s"
KEY = "k"


@dataclass
class Lane:
    """What becomes of one call, in seconds; ``None`` for what does not happen."""

    name: str
    called: int
    dropped: bool = False
    started: int | None = None
    refused: int | None = None
    ended: int | None = None


@dataclass
class Story:
    """The lanes of all calls, and for each second the states in which the lock is held."""

    lanes: list[Lane] = field(default_factory=list)
    held: list[frozenset[str]] = field(default_factory=list)


class Player:
    """Publishes, starts and ends calls under one policy, as the guard does."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0
        self.store = MemoryStore(lambda: self.now * 1_000_000)

    def publish(self, lane: Lane) -> None:
        call = Call("t", lane.name, (), {}, None)
        ask = verdicts.claim_ask(self.policy, KEY, call)
        lane.dropped = ask is not None and self.store.claim([ask], Caller(lane.name)) is not None

    def start(self, lane: Lane) -> None:
        ask = verdicts.begin_ask(self.policy, KEY, 0.0, comes_back=self.policy.on_conflict == "wait")
        reply = self.store.begin([ask], Attempt(lane.name, token=lane.name)) if ask else Begun((0,))
        if isinstance(reply, Begun):
            lane.started = self.now
            return
        verdict = verdicts.on_conflict(self.policy, KEY, "t", reply.holders, Ticket(), 0.0)
        lane.refused = None if isinstance(verdict, verdicts.Wait) else self.now

    def end(self, lane: Lane) -> None:
        ask = verdicts.finish_ask(self.policy, KEY, lane.name, "succeeded", 0.0)
        if ask:
            self.store.finish([ask], Attempt(lane.name, token=lane.name), well=True)
        lane.ended = self.now

    def held(self) -> frozenset[str]:
        record = self.store.read(KEY)
        states = {"queued": record.queued, "running": record.running, "done": record.done}
        return frozenset(state for state, part in states.items() if part)


def play(lock: str) -> Story:
    """Tell the story under the lock of this name, with its fields as they are unless set."""
    player = Player(Policy(lock=lock, period=PERIOD if LOCKS[lock].periodic else None))
    story = Story()
    for now in range(END):
        player.now = now
        for lane in story.lanes:
            if lane.started is not None and now == lane.started + RUN:
                player.end(lane)
        if now in CALLS:
            story.lanes.append(Lane(CALLS[now], now))
            player.publish(story.lanes[-1])
        for lane in story.lanes:
            is_due = now >= lane.called + IN_QUEUE and not lane.dropped
            if is_due and lane.started is None and lane.refused is None:
                player.start(lane)
        story.held.append(player.held())
    return story
