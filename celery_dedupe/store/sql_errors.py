"""What goes wrong between a client and its database, as the store's own errors."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.protocol import NotSetUp
from celery_dedupe.tables import claims

# SQLAlchemy wraps what a driver raises, but not every OSError on the way there.
FAILURES = (SQLAlchemyError, OSError)

# Serialization failures and deadlocks; what SQLite says at once, where it does not wait.
_AGAIN = ("40001", "40P01", 1213, "database is locked")
_NO_TABLE = ("42P01", "42S02", 1146, f"no such table: {claims.name}")


def passing(error: Exception) -> bool:
    """Whether another try may do better: the connection was lost, or another transaction in the way."""
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return lost or _code(error) in _AGAIN


def no_table(error: Exception) -> bool:
    """Whether the table of claims is missing."""
    return _code(error) in _NO_TABLE


def unavailable(error: Exception, url: URL) -> StoreUnavailable:
    """The error as callers of a store know it, without the password of ``url``."""
    if no_table(error):
        return NotSetUp(
            f"the claim store has no table {claims.name}: make it with a migration (docs/stores.md), or once "
            f'with celery_dedupe.tables.create_tables("db+{url.render_as_string()}", claims)'
        )
    cause = _cause(error)
    return StoreUnavailable(f"the claim store cannot be used: {type(cause).__name__}: {cause}")


def _cause(error: Exception) -> BaseException:
    # SQLAlchemy's own text shows the statement with its values.
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _code(error: Exception) -> Any:
    cause: Any = _cause(error)
    # SQL's five characters where the driver tells them (psycopg2 as pgcode), else the server's own number.
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code or next(iter(cause.args), None)
