"""Copies of our data in other systems."""

from __future__ import annotations

from celery import Task

from legacy.app import app
from legacy.database import execute, slow_work, trail


@app.task(bind=True)
def account(self: Task, name: str) -> int:
    """Copy an account as it is now. Two copies at once would undo each other."""
    with trail(self):
        [(version,)] = execute("select version from accounts where name = ?", name)
        slow_work(self, 1.0)
        execute("update accounts set copied = ? where name = ?", version, name)
        return int(version)
