"""Celery's settings, and those of celery-once-task."""

from __future__ import annotations

import os

from celery_once_task import configure

server = os.environ.get("MIGRATING_REDIS", "redis://localhost:6379")
broker_url = f"{server}/0"
result_backend = f"{server}/1"
broker_connection_retry_on_startup = True

configure(redis_url=f"{server}/3", queue_lock_timeout=7200, running_lock_timeout=7200)
