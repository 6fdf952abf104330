"""Celery's settings. Claims live where results do, since ``dedupe_url`` is not set."""

from __future__ import annotations

import os

server = os.environ.get("LEGACY_REDIS", "redis+socket:///run/redis/redis.sock")
broker_url = f"{server}?virtual_host=0"
result_backend = f"{server}?virtual_host=1"
broker_connection_retry_on_startup = True
include = ["legacy.backups", "legacy.mail", "legacy.reports", "legacy.sync"]

dedupe_mode = os.environ.get("LEGACY_DEDUPE_MODE", "enforce")
dedupe_rules = {
    "legacy.reports.*": "until_finished",
    "legacy.sync.*": "queue_and_run",
    "legacy.mail.digest": {"lock": "until_expired", "period": "2s"},
    "legacy.backups.*": {"lock": "until_finished", "lease": "3s"},
}
