"""What a database says of itself."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.engine import Connection

from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.tables import claims


def read_facts(connection: Connection) -> StoreFacts:
    """Ask ``connection``. Raises what SQLAlchemy raises, which it does without a table of claims, too."""
    connection.execute(select(claims.c.key).limit(1))
    dialect = connection.dialect
    version = ".".join(str(part) for part in dialect.server_version_info or ())
    writable = None
    if dialect.name == "postgresql":
        name = f"PostgreSQL {version}"
        writable = connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "off"
    elif dialect.name == "sqlite":
        name = f"SQLite {version} in {connection.engine.url.database}"
    else:
        name = f"{'MariaDB' if getattr(dialect, 'is_mariadb', False) else 'MySQL'} {version}"
        writable = not connection.exec_driver_sql("SELECT @@global.read_only").scalar()
    return StoreFacts(name, evicts="", persists=True, writable=writable)
