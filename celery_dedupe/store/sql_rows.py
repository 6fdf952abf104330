"""The rows of the table of claims: how each database locks them, tells the time, and writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, bindparam, delete, literal_column, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import Insert

from celery_dedupe.core.parts import FOREVER
from celery_dedupe.tables import KEY_LENGTH, claims

# The server's clock in microseconds, as it is at the statement and not at the begin of its transaction.
_CLOCKS: Mapping[str, ColumnElement[int]] = {
    "postgresql": literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"),
    "mysql": literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"),
    # It has no server: the machine's clock is the store's.
    "sqlite": bindparam("now", type_=BigInteger, callable_=lambda: time.time_ns() // 1000),
}

_THESE = claims.c.key.in_(bindparam("keys", expanding=True))
_EXPIRED = claims.c.expires_at.between(FOREVER + 1, bindparam("now"))
_LAST = "\U0010ffff"  # It sorts after every text.

Row = tuple[str, int]  # its text, and when it ends, in ms
Texts = dict[str, str]

_NOTE = "#"  # With this begin the keys of rows that are no claims; no prefix of keys can.


class Rows:
    """What a store does to rows, within a transaction that others begin and end.

    Arguments:
        dialect: SQLAlchemy's name of the database.
        clock: gives the time in microseconds; tests hand in one they can turn.
    """

    def __init__(self, dialect: str, clock: ColumnElement[int] | None = None) -> None:
        kind = "mysql" if dialect == "mariadb" else dialect
        # One row at least, for the time, whether any of the keys is there or not.
        always = select(literal_column("1")).subquery()
        self._look = select(
            _CLOCKS[kind] if clock is None else clock, claims.c.key, claims.c.record
        ).select_from(always.outerjoin(claims, _THESE))
        self._serial = kind == "sqlite"
        self._insert_or_lock = _insert_or(kind, lambda old, new: old)
        self._insert_or_write = _insert_or(kind, lambda old, new: new)

    def lock(self, connection: Connection, keys: Sequence[str]) -> tuple[Texts, int]:
        """Lock the rows of ``keys``, which are sorted, and return their texts and the time.

        A row that is missing is inserted, for a lock needs a row, and the unique key lets one insert go on:
        whoever else asks for the key waits here until this transaction has ended.
        """
        if self._serial:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            empty = [{"key": key, "record": "", "expires_at": 1} for key in keys]
            connection.execute(self._insert_or_lock, empty)
        # Only now that nobody else can write them: a time from before would let a fence shrink.
        return self.texts(connection, keys)

    def texts(self, connection: Connection, keys: Sequence[str]) -> tuple[Texts, int]:
        """The texts of those of ``keys`` that are there, and the time."""
        rows = connection.execute(self._look, {"keys": keys}).all()
        return {key: text for _, key, text in rows if key is not None}, int(rows[0][0])

    def time(self, connection: Connection) -> int:
        """The store's clock, in microseconds."""
        return self.texts(connection, [])[1]

    def page(self, connection: Connection, start: str, after: str, size: int) -> list[tuple[str, str]]:
        """The next ``size`` claims whose keys begin with ``start``, behind the key ``after``."""
        rows = (
            select(claims.c.key, claims.c.record)
            .where(
                claims.c.key > bindparam("after"), claims.c.key.between(bindparam("start"), bindparam("end"))
            )
            .order_by(claims.c.key)
            .limit(size)
        )
        found = connection.execute(rows, {"after": after, "start": start, "end": start + _LAST})
        return [(key, text) for key, text in found]

    def write(self, connection: Connection, rows: Mapping[str, Row]) -> None:
        """Write rows; one whose text is empty is deleted."""
        full = [{"key": key, "record": text, "expires_at": end} for key, (text, end) in rows.items() if text]
        if full:
            connection.execute(self._insert_or_write, full)
        self._delete(connection, [key for key, (text, _) in rows.items() if not text])

    def sweep(self, connection: Connection, now: int, size: int) -> int:
        """Delete up to ``size`` rows whose time has passed and that nobody is at. Returns how many."""
        if self._serial:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        rows = select(claims.c.key).where(_EXPIRED).limit(size).with_for_update(skip_locked=True)
        keys = connection.execute(rows, {"now": now // 1000}).scalars().all()
        self._delete(connection, keys)
        return len(keys)

    def _delete(self, connection: Connection, keys: Collection[str]) -> None:
        if keys:
            connection.execute(delete(claims).where(_THESE), {"keys": list(keys)})


def row_key(key: str) -> str:
    """The key as its row has it: one that is too long ends in a digest of it."""
    if len(key) <= KEY_LENGTH:
        return key
    digest = sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{key[: KEY_LENGTH - len(digest)]}{digest}"


def note_key(key: str) -> str:
    """The key of a row that is no claim."""
    return row_key(f"{_NOTE}{key}")


def _insert_or(kind: str, choose: Callable[[Any, Any], Any]) -> Insert:
    """Insert rows; in one that is there set to each column what ``choose(old, new)`` says."""
    if kind == "mysql":
        row = mysql.insert(claims)
        return row.on_duplicate_key_update(_chosen(choose, row.inserted))
    insert: Any = postgresql.insert if kind == "postgresql" else sqlite.insert
    row = insert(claims)
    upsert: Insert = row.on_conflict_do_update(index_elements=["key"], set_=_chosen(choose, row.excluded))
    return upsert


def _chosen(choose: Callable[[Any, Any], Any], new: Any) -> dict[str, Any]:
    return {name: choose(claims.c[name], new[name]) for name in ("record", "expires_at")}
