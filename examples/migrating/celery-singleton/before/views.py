"""Code that calls the tasks."""

from __future__ import annotations

from celery_singleton import DuplicateTaskError
from tasks import make_report, sync_account


def order_report(customer):
    return make_report.delay(customer).id


def press_sync(account):
    try:
        return sync_account.delay(account, reason="somebody pressed a button").id
    except DuplicateTaskError as error:
        return f"under way as {error.task_id}"
