"""The effect that happens once: a row in the user's own transaction, by SQLAlchemy (extra ``sql``).

A broker may deliver a message twice whatever one does. What a task writes to a database can still happen
once: the row that says it has happened is written in the same transaction, under a primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.dml import Insert

from celery_dedupe.core.effect import effect_name
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.tables import effects

__all__ = ["effect_once"]


@contextmanager
def effect_once(
    session_or_connection: Session | scoped_session[Any] | Connection,
    kind: str,
    object_id: str | int | UUID,
) -> Iterator[bool]:
    """Yield ``True`` to the first that asks for an effect and ``False`` to every other.

    The first writes a row in the transaction that is under way, so the effect and the row share its fate: a
    commit keeps both, a rollback takes both back, and the next that asks is the first again. Whoever asks
    while the first's transaction is open waits for its end, then gets ``False`` after a commit and ``True``
    after a rollback. The caller commits.

    The block is a savepoint. An error that leaves it takes back the row and what the block wrote, and is
    raised again; the transaction can go on, and where the caller swallows the error the effect has not
    happened.

    At REPEATABLE READ and SERIALIZABLE, PostgreSQL cannot show this transaction a row that was committed
    after its snapshot: it raises a serialization failure (40001), and the transaction is to be run again.

    Arguments:
        session_or_connection: of PostgreSQL, MySQL with InnoDB, MariaDB or SQLite, not in AUTOCOMMIT.
        kind: what happens, 1 to 100 characters: ``"welcome mail"``.
        object_id: what it happens to, 1 to 255 characters. Numbers and UUIDs are taken as text.

    Raises:
        TypeError, ValueError: ``kind`` or ``object_id`` cannot be stored as they are.
        ConfigurationError: the database is of another kind.
        sqlalchemy.exc.OperationalError: the database does not let this transaction wait any longer, or ends
            a deadlock with it.
    """
    name = effect_name(kind, object_id)
    connection = _connection(session_or_connection)
    statement = _insert(connection).values(kind=name[0], object_id=name[1])
    if connection.dialect.name == "sqlite":
        _begin(connection)
    with _savepoint(session_or_connection) as within:
        result = within.execute(statement, execution_options={"preserve_rowcount": True})
        yield result.first() is not None if result.returns_rows else result.rowcount == 1


@contextmanager
def _savepoint(session_or_connection: Session | scoped_session[Any] | Connection) -> Iterator[Connection]:
    error: BaseException | None = None
    try:
        with session_or_connection.begin_nested():
            try:
                # Only now: a session sends the savepoint when it is asked for its connection.
                yield _connection(session_or_connection)
            except BaseException as raised:
                error = raised
                raise
    except DBAPIError:
        if error is None:
            raise
        # MySQL ends a deadlock with the whole transaction: that there is no savepoint left is not the news.
        raise error from None


def _connection(session_or_connection: object) -> Connection:
    if isinstance(session_or_connection, Connection):
        return session_or_connection
    if isinstance(session_or_connection, (Session, scoped_session)):
        return session_or_connection.connection()
    raise TypeError(
        "effect_once: pass a Session, a scoped_session or a Connection, not "
        f"{type(session_or_connection).__name__}; with asyncio call it in a function given to run_sync"
    )


def _insert(connection: Connection) -> Insert:
    """Return the insert that writes nothing where the row is there, and breaks no transaction by it."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        return postgresql.insert(effects).on_conflict_do_nothing().returning(effects.c.kind)
    if dialect == "sqlite":
        return sqlite.insert(effects).on_conflict_do_nothing()
    if dialect in ("mysql", "mariadb"):
        return insert(effects).prefix_with("IGNORE")
    raise ConfigurationError(f"effect_once does not know {dialect}; use postgresql, mysql, mariadb or sqlite")


def _begin(connection: Connection) -> None:
    # Python's sqlite3 begins no transaction for a savepoint, which would then commit by itself at its end.
    # IMMEDIATE waits for another's transaction here; one that has read before could only give up.
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
