"""What a database keeps that is no claim: counts, and texts of an observer. Rows all, which no scan meets."""

from __future__ import annotations

import json
from collections.abc import Iterable

from celery_dedupe.core.counts import HOUR, KEPT, Counts, hours, total
from celery_dedupe.store.sql_rows import Row, Texts, note_key
from celery_dedupe.store.sql_transactions import Transactions


class SqlCounts(Transactions):
    """The verbs of ``Store`` that count and observe."""

    def count(self, name: str, counts: Counts) -> None:
        keys = [note_key(f"{name}:{place}") for place in (self.clock() // HOUR, "total")]

        def add(texts: Texts, now: int) -> tuple[None, dict[str, Row]]:
            summed = {key: total([*_read(texts.get(key, "")), *counts.items()]) for key in keys}
            return None, {key: (_write(sums), now // 1000 + KEPT) for key, sums in summed.items()}

        self._change(keys, add)

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        places = ("total",) if since is None else hours(since, self.clock())
        keys = [note_key(f"{name}:{place}") for place in places]
        texts, _ = self._ask(lambda link: self._rows.texts(link, keys))
        return total(part for text in texts.values() for part in _read(text))

    def look(self, key: str) -> str:
        name = note_key(key)
        texts, now = self._ask(lambda link: self._rows.texts(link, [name]))
        return _text(texts.get(name, ""), now)

    def swap(self, key: str, before: str, after: str, ttl: int) -> bool:
        name = note_key(key)

        def put(texts: Texts, now: int) -> tuple[bool, dict[str, Row]]:
            if _text(texts.get(name, ""), now) != before:
                return False, {}
            end = now // 1000 + ttl
            return True, {name: (json.dumps([after, end]), end)}

        return self._change([name], put)


def _read(text: str) -> Iterable[tuple[tuple[str, str], int]]:
    return [((task, what), number) for task, what, number in json.loads(text or "[]")]


def _write(counts: Counts) -> str:
    return json.dumps([[task, what, number] for (task, what), number in counts.items()])


def _text(row: str, now: int) -> str:
    text, end = json.loads(row or '["", 0]')
    return str(text) if end > now // 1000 else ""
