"""Claims in a database: every verb is one transaction, in which the pure transitions change locked rows."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from celery_dedupe.core import transitions
from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    EvictAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)
from celery_dedupe.core.record import Record
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.store import sql_text
from celery_dedupe.store.chunks import chunks
from celery_dedupe.store.protocol import NO_SLOTS, NotARecord
from celery_dedupe.store.sql_counts import SqlCounts
from celery_dedupe.store.sql_facts import read_facts
from celery_dedupe.store.sql_rows import Row, Texts, row_key

T = TypeVar("T")
Book = dict[str, Record]
Change = Callable[[Book, int], tuple[T, Mapping[str, Record]]]
logger = logging.getLogger("celery_dedupe")


class SqlStore(SqlCounts):
    """The verbs of ``Store`` on rows whose key is unique: whoever comes second waits for the first, and sees.

    Several locks of one task are granted together or not at all.
    """

    chunk = 200  # Keys in one transaction of an operator or of the heartbeat.

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        return self._turn(
            [ask.key for ask in asks], lambda book, now: transitions.claim(book, asks, caller, now)
        )

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        self._turn(
            keys,
            lambda book, now: (None, transitions.withdraw(book, keys, task_id, running, slots, now)),
        )

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        return self._turn(
            [ask.key for ask in asks], lambda book, now: transitions.begin(book, asks, attempt, now)
        )

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        kept: list[bool] = []
        for some in chunks(asks, self.chunk):
            kept += self._renew(some)
        return kept

    def _renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        return self._turn(
            [ask.key for ask in asks], lambda book, now: transitions.renew(book, asks, now), tolerant=True
        )

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        return self._turn(
            [ask.key for ask in asks], lambda book, now: transitions.finish(book, asks, attempt, well, now)
        )

    def read(self, key: str) -> Record:
        name = row_key(key)
        texts, now = self._ask(lambda link: self._rows.texts(link, [name]))
        return _record(key, texts.get(name, "")).live(now // 1000)

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        start, after = re.split(r"[*?[]", pattern, maxsplit=1)[0], ""
        now = self.clock()
        while rows := self._page(start, after):
            for key, text in rows:
                try:
                    record = _record(key, text).live(now)
                except NotARecord as error:
                    logger.warning("%s", error)
                    continue
                if record and fnmatch.fnmatchcase(key, pattern):
                    yield key, record
            after = rows[-1][0]

    def _page(self, start: str, after: str) -> list[tuple[str, str]]:
        return self._ask(lambda link: self._rows.page(link, start, after, self.chunk))

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        freed: list[int] = []
        for some in chunks(asks, self.chunk):
            freed += self._evict(some)
        return freed

    def _evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        return self._turn([ask.key for ask in asks], lambda book, now: transitions.evict(book, asks, now))

    def facts(self) -> StoreFacts:
        return self._ask(read_facts)

    def _turn(self, keys: Iterable[str], change: Change[T], *, tolerant: bool = False) -> T:
        """Let ``change`` decide over the records of ``keys``, and write what it changes.

        ``tolerant``: a row that is no record is as one that is not there, and stays as it is.
        """
        names = {row_key(key): key for key in keys}
        if not names:
            return change({}, 0)[0]

        def decide(texts: Texts, now: int) -> tuple[T, dict[str, Row]]:
            book = _book(names, texts, tolerant=tolerant)
            reply, changes = change(book, now)
            return reply, {
                row_key(key): (sql_text.write(record), record.expires_at)
                for key, record in changes.items()
                if record != book.get(key)
            }

        return self._change(names, decide)


def _book(names: Mapping[str, str], texts: Mapping[str, str], *, tolerant: bool) -> Book:
    book = {}
    for name, key in names.items():
        with suppress(*((NotARecord,) if tolerant else ())):
            book[key] = _record(key, texts.get(name, ""))
    return book


def _record(key: str, text: str) -> Record:
    try:
        return sql_text.read(text)
    except ValueError as error:
        raise NotARecord(key) from error
