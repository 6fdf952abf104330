"""Renews the leases this process holds, and retries the releases that the store did not take."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from celery_dedupe.core.asks import LeaseAsk
from celery_dedupe.errors import LeaseLost, StoreUnavailable

logger = logging.getLogger("celery_dedupe")

AGAIN = 1.0  # seconds between tries while the store does not answer


@dataclass(eq=False)
class Lease:
    """One running slot held by this process.

    Attributes:
        key: the lock's key in the store.
        fence: a number that grows with every slot given under the key: hand it to whatever the task writes
            to, and let that refuse a smaller one than it has seen.
        seconds: how long the lease lives unless renewed.
        interrupt: stops the run, called once if the lease is lost.
        lost: the store said that the slot is no longer this run's.
    """

    key: str
    token: str
    fence: int
    seconds: float
    task: str
    task_id: str
    interrupt: Callable[[], None] | None = None
    lost: bool = False
    renewed_at: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> float:
        """When it is to be renewed, by ``time.monotonic``: after a third of its time."""
        return self.renewed_at + self.seconds / 3

    @property
    def expires_in(self) -> float:
        """Seconds until the lease ends unless renewed, by this process' clock; never below 0."""
        return 0.0 if self.lost else max(self.renewed_at + self.seconds - time.monotonic(), 0.0)

    def ensure(self) -> None:
        """Raise ``LeaseLost`` if the lease is lost or has run out: to be asked before an effect."""
        if self.expires_in == 0:
            raise LeaseLost(
                f"{self.task}[{self.task_id}] no longer holds {self.key}: another run may have it"
            )


@dataclass(eq=False, slots=True)
class _Release:
    send: Callable[[], object]
    until: float


class Heartbeat:
    """One daemon thread a process, started with the first lease, started anew in a forked child.

    Arguments:
        renew: prolongs leases, ``False`` for each that is lost, ``None`` where its store does not answer.
        on_lost: is told once of each lost lease.
    """

    _thread: threading.Thread

    def __init__(
        self,
        renew: Callable[[Sequence[LeaseAsk]], Sequence[bool | None]],
        on_lost: Callable[[Lease], None],
    ) -> None:
        self._renew = renew
        self._on_lost = on_lost
        self._start_over()
        _heartbeats.add(self)

    def hold(self, leases: Iterable[Lease]) -> None:
        """Keep ``leases`` alive from now on."""
        with self._changed:
            self._leases.update(leases)
            self._wake()

    def drop(self, leases: Iterable[Lease]) -> None:
        """Renew ``leases`` no more."""
        with self._changed:
            self._leases.difference_update(leases)

    def release_later(self, send: Callable[[], object], within: float) -> None:
        """Try ``send`` again until it goes through, for at most ``within`` seconds: by then it has ended."""
        with self._changed:
            if not self._releases:
                self._next_release = time.monotonic() + AGAIN
            self._releases.append(_Release(send, time.monotonic() + within))
            self._wake()

    def held(self) -> list[Lease]:
        """The leases this process holds now."""
        with self._changed:
            return list(self._leases)

    def stop(self) -> None:
        """End the thread, after one more try of what is still to be released. What is held ends by itself."""
        with self._changed:
            thread = self._thread
            self._thread = _no_thread()
            self._changed.notify_all()
        if thread.is_alive():
            thread.join(timeout=5.0)
        self._send_releases()

    def _start_over(self) -> None:
        # A forked child has none of its parent's threads, and holds none of its leases.
        self._changed = threading.Condition()
        # Weak: a run that ends without a word, by a soft time limit in the middle of its finish, takes its
        # leases along. Else its slot would be renewed for as long as the process lives.
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._releases: list[_Release] = []
        self._next_release = 0.0
        self._thread = _no_thread()

    def _wake(self) -> None:
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._beat, name="celery-dedupe-heartbeat", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _beat(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._thread is not me:
                    return
                pause = self._pause()
                if pause is None or pause > 0:
                    self._changed.wait(pause)
                    continue
            try:
                answered = self._renew_all()
                self._send_releases()
                if not answered:
                    self._rest(AGAIN)
            except Exception:
                logger.exception("The heartbeat failed and goes on; leases may run out")
                self._rest(AGAIN)

    def _pause(self) -> float | None:
        """Seconds until the next thing to do; ``None`` if there is nothing."""
        due = [lease.due for lease in self._leases]
        if self._releases:
            due.append(self._next_release)
        return min(due) - time.monotonic() if due else None

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)

    def _renew_all(self) -> bool:
        """Returns whether all stores have answered."""
        # All at once, not only those that are due: one call an interval, whatever the number of leases.
        leases = self.held()
        asked_at = time.monotonic()
        if not any(lease.due <= asked_at for lease in leases):
            return True
        kept = self._renew([LeaseAsk(lease.key, lease.token, int(lease.seconds * 1000)) for lease in leases])
        for lease, alive in zip(leases, kept, strict=True):
            if alive:
                lease.renewed_at = asked_at
            elif alive is not None and self._lose(lease):
                self._on_lost(lease)
        return None not in kept

    def _lose(self, lease: Lease) -> bool:
        with self._changed:
            if lease not in self._leases:
                return False  # Its run has just ended and freed the slot itself: that is no loss.
            self._leases.discard(lease)
            lease.lost = True
            # Under the lock, so that drop() keeps the run from ending before it is stopped.
            if lease.interrupt is not None:
                lease.interrupt()
        return True

    def _send_releases(self) -> None:
        with self._changed:
            waiting, self._releases = self._releases, []
        for release in waiting:
            if release.until < time.monotonic():
                continue
            try:
                release.send()
            except StoreUnavailable:
                with self._changed:
                    self._releases.append(release)
            except Exception:
                logger.exception("A release failed; what it holds will run out by itself")
        self._next_release = time.monotonic() + AGAIN


def _no_thread() -> threading.Thread:
    return threading.Thread(daemon=True)  # Never started, so never alive.


_heartbeats: weakref.WeakSet[Heartbeat] = weakref.WeakSet()


def _after_fork() -> None:
    for heartbeat in list(_heartbeats):
        heartbeat._start_over()


os.register_at_fork(after_in_child=_after_fork)
