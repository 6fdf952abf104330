"""Programs that ask for an effect in a transaction of their own, each in a process, step by step as told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session

SENT = "sent"  # the table with what the effect wrote, in which nothing keeps a second row away


class SqlAlchemyAsker:
    """By SQLAlchemy; the subclasses say with what."""

    open: Callable[[Any], Any]

    def __init__(self, url: str, isolation: str | None) -> None:
        options = {"isolation_level": isolation} if isolation else {}
        arguments = {"timeout": 30} if url.startswith("sqlite") else {}
        self._engine = create_engine(url, connect_args=arguments, **options)
        self._bind: Any = None

    def create(self) -> None:
        """Make both tables."""
        from celery_dedupe.tables import create_tables, effects

        create_tables(self._engine, effects)
        with self._engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {SENT} (object_id VARCHAR(50))"))

    def begin(self) -> None:
        """Open a transaction."""
        self._bind = type(self).open(self._engine)

    def look(self) -> int:
        """Count what the effect wrote, as this transaction sees it."""
        return int(self._bind.execute(text(f"SELECT count(*) FROM {SENT}")).scalar())

    def ask(self, object_id: str) -> bool:
        """Ask for the effect, and bring it about if it is for this one to do."""
        from celery_dedupe.effects import effect_once

        with effect_once(self._bind, "send", object_id) as first:
            if first:
                self._bind.execute(text(f"INSERT INTO {SENT} VALUES (:id)"), {"id": object_id})
            return first

    def end(self, commit: bool) -> None:
        """Commit or roll back."""
        with self._bind as bind:
            bind.commit() if commit else bind.rollback()


class SessionAsker(SqlAlchemyAsker):
    open = staticmethod(Session)


class ConnectionAsker(SqlAlchemyAsker):
    open = staticmethod(lambda engine: engine.connect())


class DjangoAsker:
    """By Django, on the same database."""

    def __init__(self, url: str, isolation: str | None) -> None:
        import django
        from django.conf import settings

        settings.configure(
            INSTALLED_APPS=["celery_dedupe.django"],
            USE_TZ=True,
            DATABASES={"default": _database(url, isolation)},
        )
        django.setup()

    def create(self) -> None:
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {SENT} (object_id VARCHAR(50))")

    def begin(self) -> None:
        from django.db import transaction

        self._transaction = ExitStack()
        self._transaction.enter_context(transaction.atomic())

    def look(self) -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {SENT}")
            return int(cursor.fetchone()[0])

    def ask(self, object_id: str) -> bool:
        from django.db import connection

        from celery_dedupe.django import effect_once

        with effect_once("send", object_id) as first:
            if first:
                with connection.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {SENT} VALUES (%s)", [object_id])
            return first

    def end(self, commit: bool) -> None:
        from django.db import transaction

        if not commit:
            transaction.set_rollback(True)
        self._transaction.close()


def _database(url: str, isolation: str | None) -> dict[str, Any]:
    """What Django calls a database that SQLAlchemy calls by a URL."""
    parts = make_url(url)
    engine = {"postgresql": "postgresql", "sqlite": "sqlite3", "mysql": "mysql"}[parts.get_backend_name()]
    options: dict[str, Any] = {}
    if engine == "mysql":
        import pymysql

        pymysql.install_as_MySQLdb()
    elif engine == "sqlite3":
        options["timeout"] = 30
    elif isolation:
        from psycopg import IsolationLevel

        options["isolation_level"] = IsolationLevel[isolation.replace(" ", "_")]
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


ASKERS = {"session": SessionAsker, "connection": ConnectionAsker, "django": DjangoAsker}


def serve(style: str, url: str, isolation: str | None, barrier: Any, link: Connection) -> None:
    """The process: carry out each order that comes over the link, ``(name, *arguments)``, and answer it.

    The answer is what the order returned, or the error it raised, as text. ``race`` is the order to meet all
    others at the barrier, then ask for the effect, then commit.
    """
    asker = ASKERS[style](url, isolation)
    while True:
        try:
            name, *arguments = link.recv()
        except EOFError:
            return
        try:
            if name == "race":
                barrier.wait(60)
                asker.begin()
                answer: Any = asker.ask(*arguments)
                asker.end(True)
            else:
                answer = getattr(asker, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - the test is told
            answer = f"{type(error).__name__}: {error}"
        link.send(answer)
