"""Stops duplicate work in a Celery code base without touching its tasks."""

from __future__ import annotations

from celery_dedupe.core.policy import Policy
from celery_dedupe.core.verdicts import Duplicate
from celery_dedupe.errors import (
    ConfigurationError,
    DedupeError,
    DeliveryLimitExceeded,
    DuplicateTask,
    LeaseLost,
    RateExceeded,
    StoreUnavailable,
    UnkeyableArguments,
)
from celery_dedupe.extension import Dedupe
from celery_dedupe.gates.desk import current_lease
from celery_dedupe.gates.results import duplicate_of
from celery_dedupe.heartbeat import Lease
from celery_dedupe.periods import only_after

__all__ = [
    "ConfigurationError",
    "Dedupe",
    "DedupeError",
    "DeliveryLimitExceeded",
    "Duplicate",
    "DuplicateTask",
    "Lease",
    "LeaseLost",
    "Policy",
    "RateExceeded",
    "StoreUnavailable",
    "UnkeyableArguments",
    "current_lease",
    "duplicate_of",
    "only_after",
]
