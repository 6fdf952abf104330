"""Mail to everybody."""

from __future__ import annotations

from celery import Task

from legacy.app import app
from legacy.database import trail


@app.task(bind=True)
def digest(self: Task) -> None:
    """Send the digest to all subscribers, who want it once an interval."""
    with trail(self):
        pass
