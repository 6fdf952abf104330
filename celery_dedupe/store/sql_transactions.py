"""Runs transactions on a database: locked rows are read, changed and written, or nothing is."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TypeVar

from sqlalchemy import ColumnElement, Engine
from sqlalchemy.engine import Connection
from sqlalchemy.pool import Pool
from sqlalchemy.schema import CreateIndex, CreateTable

from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.sql_errors import FAILURES, no_table, passing, unavailable
from celery_dedupe.store.sql_rows import Row, Rows, Texts
from celery_dedupe.tables import claims

T = TypeVar("T")
logger = logging.getLogger("celery_dedupe")

TRIES = 5  # of one transaction that others are in the way of
SWEEP_EVERY = 60.0  # seconds


class Transactions:
    """An engine of the store's own, at READ COMMITTED, whose connections no fork shares.

    Every failure becomes ``StoreUnavailable``. A connection that was lost, a deadlock and a serialization
    failure are tried again, within ``timeout``.

    Arguments:
        timeout: seconds that a transaction may take before it fails.
        deadline: ends the silence of a server, where the driver cannot.
        clock: gives the time in microseconds; tests hand in one they can turn.
    """

    sweep = 1000  # Rows that one transaction deletes.

    def __init__(
        self,
        engine: Engine,
        *,
        timeout: float,
        deadline: Callable[[Connection, float], AbstractContextManager[object]] = lambda *_: nullcontext(),
        clock: ColumnElement[int] | None = None,
    ) -> None:
        self._engine = engine
        self._timeout = timeout
        self._deadline = deadline
        self._rows = Rows(engine.dialect.name, clock)
        self._sweep_at = 0.0
        _open.add(self)

    def clock(self) -> int:
        return self._ask(self._rows.time) // 1000

    def close(self) -> None:
        self._engine.dispose()

    def _change(
        self, keys: Collection[str], decide: Callable[[Texts, int], tuple[T, Mapping[str, Row]]]
    ) -> T:
        """Let ``decide`` see the texts of the locked rows ``keys``, and the time; write the rows it gives.

        A row whose text comes back empty is deleted. Without any to write nothing is committed.
        """

        def turn(link: Connection) -> tuple[T, int]:
            texts, now = self._rows.lock(link, sorted(keys))
            reply, changed = decide(texts, now)
            if changed:
                # What was inserted for the sake of its lock, and is still empty, goes as well.
                self._rows.write(link, {**{key: ("", 0) for key in keys if not texts.get(key)}, **changed})
            else:
                link.rollback()
            return reply, now

        reply, now = self._ask(turn)
        self._sweep(now)
        return reply

    def _ask(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` returns, in a transaction of its own."""
        until = time.monotonic() + self._timeout
        for tries_left in reversed(range(TRIES)):
            try:
                with self._engine.connect() as link, self._deadline(link, self._timeout), link.begin():
                    return work(link)
            except FAILURES as error:  # noqa: PERF203 - to try again is what the loop is for
                in_time = tries_left and time.monotonic() < until
                if in_time and no_table(error) and self._engine.dialect.name == "sqlite":
                    self._make_table()
                elif not (in_time and passing(error)):
                    raise unavailable(error, self._engine.url) from error
        raise AssertionError("the last try returns or raises")

    def _make_table(self) -> None:
        # A file is nobody's but ours; a server's tables are those of its people.
        with suppress(*FAILURES), self._engine.connect() as link:
            link.execute(CreateTable(claims, if_not_exists=True))
            for index in claims.indexes:
                link.execute(CreateIndex(index, if_not_exists=True))
            link.commit()

    def _sweep(self, now: int) -> None:
        """Delete what nobody asks for again, so that the table does not grow for ever."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + SWEEP_EVERY
        try:
            if self._ask(lambda link: self._rows.sweep(link, now, self.sweep)) == self.sweep:
                self._sweep_at = 0.0
        except StoreUnavailable:
            logger.debug("No sweep of the claims", exc_info=True)

    def _start_over(self) -> None:
        # A forked child must not use its parent's connections, nor close them: they are kept and forgotten.
        _inherited.append(self._engine.pool)
        self._engine.dispose(close=False)


_open: weakref.WeakSet[Transactions] = weakref.WeakSet()
_inherited: list[Pool] = []


def _after_fork() -> None:
    for transactions in list(_open):
        transactions._start_over()


os.register_at_fork(after_in_child=_after_fork)
