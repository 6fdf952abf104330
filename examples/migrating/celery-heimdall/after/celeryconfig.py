"""Celery's settings, and rules that do what celery-heimdall did."""

from __future__ import annotations

import os

server = os.environ.get("MIGRATING_REDIS", "redis://localhost:6379")
broker_url = f"{server}/0"
result_backend = f"{server}/1"
broker_connection_retry_on_startup = True


def rate_of(args):
    return "1/10m" if args[0] == "small" else "100/s"


dedupe_defaults = {"lock": "until_finished", "queue_ttl": "2h"}
dedupe_rules = {
    "tasks.make_report": {},
    "tasks.sync_account": {"key": "account-{account}", "queue_ttl": "10m", "on_duplicate": "raise"},
    "tasks.send_digest": {"lock": "until_expired", "period": "10m"},
    "tasks.fetch_page": {"rate": "2/10m", "key": []},
    "tasks.sync_customer": {"rate": rate_of, "key": ["customer"]},
    "tasks.refresh": [{}, {"rate": "1/5s"}],
    "tasks.fetch_feed": {},
}
