"""The tables that a database of the user's can hold, by SQLAlchemy (extra ``sql``)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    func,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Connection

from celery_dedupe.core.effect import KIND_LENGTH, OBJECT_ID_LENGTH, TABLE

__all__ = ["claims", "create_tables", "effects", "metadata"]

KEY_LENGTH = 255  # characters

metadata = MetaData()


def _exact(length: int) -> String:
    # The usual collations of MySQL take "a" and "A" for one.
    binary = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(binary, "mysql", "mariadb")


effects = Table(
    TABLE,
    metadata,
    Column("kind", _exact(KIND_LENGTH), primary_key=True),
    Column("object_id", _exact(OBJECT_ID_LENGTH), primary_key=True),
    Column("created_at", DateTime(timezone=True), nullable=False, default=func.now()),
    mysql_engine="InnoDB",
)

claims = Table(
    "celery_dedupe_claims",
    metadata,
    # Byte order, so that whoever looks for a prefix is served by the index.
    Column(
        "key",
        _exact(KEY_LENGTH).with_variant(postgresql.VARCHAR(KEY_LENGTH, collation="C"), "postgresql"),
        primary_key=True,
    ),
    Column("record", Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb"), nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    mysql_engine="InnoDB",
)


def create_tables(database: Engine | Connection | str, *tables: Table) -> None:
    """Create the tables that are not there yet.

    Where Alembic makes the tables, put ``metadata`` beside the application's own in ``target_metadata``.

    Arguments:
        database: an engine, a connection, or a URL, with or without Celery's ``db+``.
        tables: ``claims``, ``effects``, or by default both.
    """
    chosen = list(tables) or None
    if not isinstance(database, str):
        metadata.create_all(database, chosen)
        return
    engine = create_engine(database.removeprefix("db+"))
    try:
        metadata.create_all(engine, chosen)
    finally:
        engine.dispose()
