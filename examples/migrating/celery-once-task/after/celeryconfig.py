"""Celery's settings, and rules that do what celery-once-task did."""

from __future__ import annotations

import os

server = os.environ.get("MIGRATING_REDIS", "redis://localhost:6379")
broker_url = f"{server}/0"
result_backend = f"{server}/1"
broker_connection_retry_on_startup = True

dedupe_url = f"{server}/3"
dedupe_defaults = {"on_duplicate": "none", "queue_ttl": "2h"}
dedupe_rules = {
    "tasks.make_report": "until_finished",
    "tasks.sync_account": {"lock": "queue_and_run", "on_conflict": "skip"},
    "tasks.update_index": "until_started",
    "tasks.clean_up": "while_running",
    "tasks.fetch_feed": "until_finished",
}
