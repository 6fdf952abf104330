"""Engines for the URLs of SQL stores."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from celery_dedupe.core.urls import mask
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.store.sql import SqlStore

TIMEOUT = 1.0  # seconds
FILE_TIMEOUT = 5.0  # seconds; whoever waits for a file is not told when it is free, but looks again
LIBPQ = ("psycopg", "psycopg2")
DRIVERS = (*LIBPQ, "pymysql", "mysqldb", "pysqlite")
_USE = (
    "use db+postgresql+psycopg://, db+postgresql+psycopg2://, db+mysql+pymysql://, db+mysql+mysqldb:// "
    "(or mariadb for mysql) or db+sqlite:///"
)


def open_sql(address: str, options: Mapping[str, Any]) -> SqlStore:
    """Return the store for a ``db+`` URL that ``check_url`` has passed. Connects to nothing yet."""
    url = _url(address)
    arguments = dict(options)
    usual = FILE_TIMEOUT if url.get_backend_name() == "sqlite" else TIMEOUT
    timeout = _seconds(arguments.pop("timeout", usual))
    engine = _engine(url, address, timeout, arguments)
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _write_ahead)
    if engine.dialect.driver in LIBPQ:
        return SqlStore(engine, timeout=timeout, deadline=end_silence)
    return SqlStore(engine, timeout=timeout)


def _url(address: str) -> URL:
    try:
        url = make_url(address.removeprefix("db+"))
    except (ArgumentError, ValueError):
        # Its own text may show a piece of a password that has an unescaped / or # in it.
        raise ConfigurationError(
            f"dedupe_url {mask(address)!r} is no URL of SQLAlchemy's: the port must be a number; "
            "write / # ? : and @ in a password as %2F %23 %3F %3A and %40"
        ) from None
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise ConfigurationError(
            f"dedupe_url {mask(address)!r} names no file, so each process would have claims of its own: "
            "write db+sqlite:////var/lib/proj/claims.sqlite, or memory:// if that is what you want"
        )
    return url


def _engine(url: URL, address: str, timeout: float, options: Mapping[str, Any]) -> Engine:
    where = f"dedupe_store_options or dedupe_url {mask(address)!r}"
    if "isolation_level" in options:
        raise ConfigurationError(
            "dedupe_store_options isolation_level: claims need READ COMMITTED; leave it out"
        )
    pool = {} if "poolclass" in options else {"pool_timeout": timeout}
    # Every transaction has ended when its connection goes back, so that another end would be one too many.
    settings = {**pool, "pool_reset_on_return": None, **options}
    try:
        dialect = url.get_dialect()
        if dialect.driver not in DRIVERS:
            raise ConfigurationError(f"{where}: {dialect.driver!r} is no driver for claims; {_USE}")
        theirs = options.get("connect_args", {})
        settings["connect_args"] = _connect_args(url, _timeouts(dialect.driver, timeout), theirs)
        if url.get_backend_name() != "sqlite":
            settings["isolation_level"] = "READ COMMITTED"
        return create_engine(url, **settings)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"dedupe_url {mask(address)!r}: its driver {error.name} is not installed; install it, or name "
            f"another; {_USE}"
        ) from None
    except (TypeError, ValueError, SQLAlchemyError) as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _connect_args(url: URL, usual: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual, where neither the URL nor the user's own arguments say something else."""
    said = {**url.query, **theirs}
    chosen = {**{name: value for name, value in usual.items() if name not in said}, **theirs}
    if said.get("options") and "options" in usual:  # libpq's: several settings in one text
        chosen["options"] = f"{usual['options']} {said['options']}"
    return chosen


def _timeouts(driver: str, timeout: float) -> dict[str, Any]:
    """The arguments of a driver's ``connect`` by which nobody waits for longer than ``timeout``.

    A server ends the transaction of a client that says nothing for five times as long, so that a process
    which is stopped in the middle does not lock others out.
    """
    seconds, ms = max(1, math.ceil(timeout)), int(timeout * 1000)
    if driver == "pysqlite":
        return {"timeout": timeout}
    if driver in LIBPQ:
        limits = {"statement_timeout": ms, "lock_timeout": ms, "idle_in_transaction_session_timeout": 5 * ms}
        return {
            "connect_timeout": seconds,
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        }
    return {
        "connect_timeout": seconds,
        "read_timeout": seconds,
        "write_timeout": seconds,
        # The comment is read by MariaDB alone.
        "init_command": f"SET SESSION innodb_lock_wait_timeout={seconds} "
        f"/*M!100300 , idle_transaction_timeout={5 * seconds} */",
    }


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise ConfigurationError(f"dedupe_store_options timeout {value!r}: write seconds, more than 0")
    return float(value)


def _write_ahead(connection: sqlite3.Connection, record: object) -> None:
    # With a log to write ahead a commit outlives its process unsynced: only a power cut takes the last ones.
    # What cannot be said now, a file that is locked or broken, shows at the first statement or does no harm.
    with suppress(sqlite3.Error):
        if connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",):
            connection.execute("PRAGMA synchronous=NORMAL")


@contextmanager
def end_silence(connection: Connection, seconds: float) -> Iterator[None]:
    """Hang up on a server that takes longer than ``seconds``: libpq waits for an answer for ever."""
    driver: Any = connection.connection.driver_connection
    with socket.socket(fileno=os.dup(driver.fileno())) as line:

        def hang_up() -> None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
