"""What becomes of the URL and the options of a database, without a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.pool import NullPool

from celery_dedupe.errors import ConfigurationError
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.sql import SqlStore

SECRET = "s3cr3t"


def engine_of(url: str, options: Mapping[str, Any] | None = None) -> Engine:
    with closing(open_store(url, options or {})) as store:
        assert isinstance(store, SqlStore)
        return store._engine


class Connected(Exception):
    """Ends a connection before it is made."""


def arguments(url: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the driver's ``connect`` is called with."""
    engine, found = engine_of(url, options), {}

    @event.listens_for(engine, "do_connect")
    def _(dialect: Any, record: Any, args: Any, named: dict[str, Any]) -> None:
        found.update(named)
        raise Connected

    with pytest.raises(Connected):
        engine.connect()
    return found


def wrong(url: str, options: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        open_store(url, options or {})
    assert SECRET not in str(raised.value)
    return str(raised.value)


class TestTimeouts:
    def test_one_second_unless_told_otherwise(self) -> None:
        given = arguments("db+postgresql+psycopg://h/d")
        assert given["connect_timeout"] == 1
        assert given["options"] == (
            "-c statement_timeout=1000 -c lock_timeout=1000 -c idle_in_transaction_session_timeout=5000"
        )
        given = arguments("db+mariadb+pymysql://h/d", {"timeout": 2.5})
        assert [given[f"{name}_timeout"] for name in ("connect", "read", "write")] == [3, 3, 3]
        assert "innodb_lock_wait_timeout=3 " in given["init_command"]
        assert arguments("db+sqlite:////f")["timeout"] == 5

    def test_what_the_user_says_beats_that(self) -> None:
        given = arguments("db+postgresql+psycopg://h/d?connect_timeout=9&options=-c%20search_path%3Da")
        assert given["connect_timeout"] == "9"
        assert given["options"].startswith("-c statement_timeout=1000 ")
        assert given["options"].endswith(" -c search_path=a")
        given = arguments(
            "db+postgresql+psycopg://h/d", {"connect_args": {"options": None, "prepare_threshold": None}}
        )
        assert (given["options"], given["prepare_threshold"]) == (None, None), "behind PgBouncer"
        assert given["connect_timeout"] == 1
        assert arguments("db+mysql+pymysql://h/d?read_timeout=9")["read_timeout"] == 9

    @pytest.mark.parametrize("value", [0, -1, "2s", True, None])
    def test_what_is_no_time(self, value: object) -> None:
        assert "write seconds, more than 0" in wrong("db+sqlite:////f", {"timeout": value})


class TestEngine:
    def test_options_are_those_of_create_engine(self) -> None:
        assert engine_of("db+sqlite:////f", {"pool_size": 3}).pool.size() == 3  # type: ignore[attr-defined]
        assert isinstance(engine_of("db+postgresql+psycopg://h/d", {"poolclass": NullPool}).pool, NullPool)

    def test_an_option_that_there_is_not(self) -> None:
        assert "pool_sise" in wrong(f"db+postgresql+psycopg://u:{SECRET}@h/d", {"pool_sise": 3})

    def test_another_isolation(self) -> None:
        message = wrong("db+postgresql+psycopg://h/d", {"isolation_level": "SERIALIZABLE"})
        assert "claims need READ COMMITTED" in message

    @pytest.mark.parametrize("url", ["db+sqlite://", "db+sqlite:///", "db+sqlite:///:memory:"])
    def test_sqlite_without_a_file(self, url: str) -> None:
        assert "names no file" in wrong(url)

    def test_a_url_that_cannot_be_read(self) -> None:
        message = wrong(f"db+mysql+pymysql://u:{SECRET}#@h:port/d")
        assert "is no URL of SQLAlchemy's: the port must be a number; write / # ? : and @ in a " in message

    def test_a_driver_that_is_not_there_or_not_known(self) -> None:
        message = wrong(f"db+mysql+mysqldb://u:{SECRET}@h/d")
        assert "'db+mysql+mysqldb://u:***@h/d': its driver MySQLdb is not installed; install it" in message
        assert "use db+postgresql+psycopg://, " in message
        assert "'aiosqlite' is no driver for claims; use " in wrong("db+sqlite+aiosqlite:////f")
        assert "postgresql.nonesuch" in wrong("db+postgresql+nonesuch://h/d")


def test_without_sqlalchemy_the_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["sqlalchemy"] = None
from celery_dedupe.store.connect import open_store
open_store("redis://h"), open_store("memory://")
try:
    open_store("db+sqlite:////f")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigurationError dedupe_url 'db+sqlite:////f' needs SQLAlchemy 2: pip ")
    assert "celery-dedupe[sql]" in done.stdout
