"""The database: what tasks read and write, a trail of their runs, and which of them somebody holds up."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from celery import Task

SCHEMA = """
    create table if not exists runs (task text, task_id text, started real, ended real);
    create table if not exists accounts (name text primary key, version integer, copied integer);
    create table if not exists held (task text);
"""


def execute(statement: str, *values: Any) -> list[Any]:
    """Run one statement in a transaction of its own, and return its rows."""
    with closing(sqlite3.connect(os.environ["LEGACY_DATABASE"], timeout=30)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def create() -> None:
    """Make the tables."""
    with closing(sqlite3.connect(os.environ["LEGACY_DATABASE"])) as connection:
        connection.executescript(SCHEMA)


@contextmanager
def trail(task: Task) -> Iterator[None]:
    """Write down when a task's body starts and ends; of a body that was killed, that it started."""
    started = time.monotonic()
    execute("insert into runs values (?, ?, ?, null)", task.name, task.request.id, started)
    try:
        yield
    finally:
        ended = time.monotonic()
        execute(
            "update runs set ended = ? where started = ? and task_id = ?", ended, started, task.request.id
        )


def slow_work(task: Task, seconds: float) -> None:
    """Take so long, and longer while somebody holds the task up."""
    time.sleep(seconds)
    while execute("select 1 from held where task = ?", task.name):
        time.sleep(0.02)
