"""Celery's settings, and rules that do what celery-singleton did."""

from __future__ import annotations

import os

server = os.environ.get("MIGRATING_REDIS", "redis://localhost:6379")
broker_url = f"{server}/0"
result_backend = f"{server}/1"
broker_connection_retry_on_startup = True

dedupe_url = f"{server}/3"
dedupe_defaults = {"lock": "until_finished", "queue_ttl": "2h"}
dedupe_rules = {
    "tasks.make_report": {},
    "tasks.sync_account": {"key": ["account"], "queue_ttl": "10m", "on_duplicate": "raise"},
    "tasks.fetch_feed": {},
}
