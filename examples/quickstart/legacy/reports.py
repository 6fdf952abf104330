"""Reports for customers."""

from __future__ import annotations

import uuid

from celery import Task

from legacy.app import app
from legacy.database import slow_work, trail


@app.task(bind=True)
def make(self: Task, customer: str) -> str:
    """Return the name of the file, which is new each time."""
    with trail(self):
        slow_work(self, 1.0)
        return f"{customer}-{uuid.uuid4().hex[:8]}.pdf"
