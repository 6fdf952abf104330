"""Skips a store that has just failed, so that an outage costs its timeout once and not once a task."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from celery_dedupe.core.places import DEFAULT
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.protocol import NotARecord

T = TypeVar("T")
logger = logging.getLogger("celery_dedupe")

PAUSE = 5.0  # seconds


class Skipped(StoreUnavailable):
    """The store is known to be away, and was asked for nothing."""


class Breaker:
    """Lets calls through while the store answers; after a failure refuses them at once for ``PAUSE`` seconds.

    Then one caller probes while the others are still refused; its success closes the breaker.
    An outage is logged once when it begins and once when it ends.

    Arguments:
        name: the store's.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._called = "the claim store" if name == DEFAULT else f"the claim store {name!r}"
        self._lead = "" if name == DEFAULT else f"store {name!r}: "
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None  # None: the store answers. Else: when the next probe may go.
        self._reason = ""

    @property
    def open(self) -> bool:
        """Whether the store failed at its last call."""
        return self._retry_at is not None

    def call(self, verb: Callable[[], T]) -> T:
        """What ``verb()`` returns. Raises ``StoreUnavailable`` if it does; ``Skipped`` while this is open.

        One key that is not ours is no outage: ``NotARecord`` goes through and opens nothing.
        """
        if self._retry_at is not None:
            self._wait_turn()
        try:
            value = verb()
        except NotARecord:
            raise
        except StoreUnavailable as error:
            self._failed(str(error))
            raise
        if self._retry_at is not None:
            self._recovered()
        return value

    def _wait_turn(self) -> None:
        with self._lock:
            if self._retry_at is None:
                return
            left = self._retry_at - self._clock()
            if left > 0:
                raise Skipped(f"{self._reason} (asked again in {left:.1f} s)")
            self._retry_at = self._clock() + PAUSE  # This caller probes; the others go on waiting.

    def _failed(self, reason: str) -> None:
        with self._lock:
            first = self._retry_at is None
            self._retry_at = self._clock() + PAUSE
            self._reason = reason
        if first:
            logger.error(
                "%s%s; policies decide whether tasks go on unprotected. Asked again every %g s",
                self._lead, reason, PAUSE,
            )  # fmt: skip

    def _recovered(self) -> None:
        with self._lock:
            last = self._retry_at is not None
            self._retry_at = None
        if last:
            logger.warning("%s answers again", self._called)
