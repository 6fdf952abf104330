"""Backups."""

from __future__ import annotations

from celery import Task

from legacy.app import app
from legacy.database import slow_work, trail


@app.task(bind=True)
def run(self: Task, disk: str) -> str:
    """Copy a disk, which takes a while."""
    with trail(self):
        slow_work(self, 1.0)
        return disk
