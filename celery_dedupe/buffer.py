"""Gathers what may be told later, so that no task waits for it, and hands it on every few seconds."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from celery_dedupe.errors import StoreUnavailable

logger = logging.getLogger("celery_dedupe")

T = TypeVar("T")

EVERY = 5.0  # seconds


class Buffer(Generic[T]):
    """What this process has gathered and not handed on yet.

    A daemon thread, started with the first addition and started anew in a forked child, hands it on every
    ``EVERY`` seconds; so does the end of the interpreter.

    Arguments:
        new: makes an empty container.
        send: hands one on. ``StoreUnavailable`` keeps it here; any other error is logged, and it is lost.
        put_back: adds to the first what could not be handed on. It keeps it within bounds.
    """

    _gathered: T

    def __init__(
        self, new: Callable[[], T], send: Callable[[T], object], put_back: Callable[[T, T], object]
    ) -> None:
        self._new = new
        self._send = send
        self._put_back = put_back
        self._over = False
        self._start_over()
        _buffers.add(self)

    def add(self, change: Callable[[T], object]) -> None:
        """Have ``change`` add to what is there. Costs no round trip."""
        with self._lock:
            change(self._gathered)
            if self._thread is None or not self._something.is_set():
                self._wake()

    def flush(self) -> None:
        """Hand on what is there, now. Never raises."""
        with self._sending:
            with self._lock:
                if not self._something.is_set():
                    return
                self._something.clear()
                gathered, self._gathered = self._gathered, self._new()
            if not gathered:
                return  # close() wakes the thread.
            try:
                self._send(gathered)
            except StoreUnavailable:
                self.add(lambda newer: self._put_back(newer, gathered))
            except Exception:  # an end of this thread would be the end of all counting
                logger.exception("The numbers of the last %g s are lost; no task is", EVERY)

    def close(self) -> None:
        """End the thread and flush, for the last time."""
        self._over = True
        with self._lock:
            self._stop.set()
            self._something.set()
        self.flush()
        _buffers.discard(self)

    def _start_over(self) -> None:
        # A forked child has none of its parent's threads, and what its parent has gathered is its parent's.
        # Both locks may be taken twice by a thread: the handler of a signal may publish, and may end all.
        self._lock = threading.RLock()
        self._sending = threading.RLock()
        self._something = threading.Event()
        self._stop = threading.Event()
        self._gathered = self._new()
        self._thread: threading.Thread | None = None

    def _wake(self) -> None:
        if self._thread is None and not self._over:
            thread = threading.Thread(target=self._run, name="celery-dedupe-buffer", daemon=True)
            # While the interpreter ends, or on a machine that is full, there is none to be had.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._something.set()

    def _run(self) -> None:
        while self._something.wait() and not self._stop.wait(EVERY):
            self.flush()


_buffers: weakref.WeakSet[Buffer[Any]] = weakref.WeakSet()


def _flush_all() -> None:
    for buffer in list(_buffers):
        buffer.flush()


def _after_fork() -> None:
    for buffer in list(_buffers):
        buffer._start_over()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_after_fork)
