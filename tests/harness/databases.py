"""Databases of a test's own on the services of the machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pymysql
from sqlalchemy import make_url

from tests.harness.servers import require_service


@contextmanager
def postgres_database() -> Iterator[str]:
    """A new database, dropped afterwards, as SQLAlchemy names it; ``"db+" + url`` is a backend or a store."""
    service = require_service("postgres")
    database = f"dedupe_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(service, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
        scheme, _, place = service.rpartition("/")[0].partition("://")
        yield f"{scheme}+psycopg://{place}/{database}"
        connection.execute(f"DROP DATABASE {database} WITH (FORCE)")


@contextmanager
def mariadb_database() -> Iterator[str]:
    """The same on MariaDB."""
    service = make_url(require_service("mariadb"))
    database = f"dedupe_{uuid.uuid4().hex[:12]}"
    connection = pymysql.connect(host=service.host, port=service.port or 3306, user=service.username or "")
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        yield f"mysql+pymysql://{service.username}@{service.host}:{service.port}/{database}"
        cursor.execute(f"DROP DATABASE {database}")
