"""What the tasks did, on the example's own server, and which work somebody holds up."""

from __future__ import annotations

import os
import time
from functools import cache

from redis import Redis


@cache
def server() -> Redis:
    """Where it is written down."""
    return Redis.from_url(f"{os.environ['MIGRATING_REDIS']}/2", decode_responses=True)


def work(what: str) -> None:
    """Do the work: note the process that does it, wait while it is held up, note that it is done."""
    server().rpush(f"started {what}", os.getpid())
    while server().exists(f"held {what}"):
        time.sleep(0.01)  # until the story lets go
    server().incr(f"done {what}")


def started(what: str) -> list[int]:
    """The process of each run so far, in order."""
    return [int(pid) for pid in server().lrange(f"started {what}", 0, -1)]


def done(what: str) -> int:
    """How many runs have come to their end."""
    return int(server().get(f"done {what}") or 0)


def hold(what: str) -> None:
    """From now on no run of it ends."""
    server().set(f"held {what}", 1)


def let_go(what: str) -> None:
    """Held up no longer."""
    server().delete(f"held {what}")
