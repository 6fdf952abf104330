"""Celery's settings, and those of celery-singleton."""

from __future__ import annotations

import os

server = os.environ.get("MIGRATING_REDIS", "redis://localhost:6379")
broker_url = f"{server}/0"
result_backend = f"{server}/1"
broker_connection_retry_on_startup = True

singleton_backend_url = f"{server}/3"
singleton_lock_expiry = 7200
