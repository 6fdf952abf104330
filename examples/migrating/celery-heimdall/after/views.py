"""Code that calls the tasks."""

from __future__ import annotations

from tasks import make_report, sync_account

from celery_dedupe import DuplicateTask


def order_report(customer):
    return make_report.delay(customer).id


def press_sync(account):
    try:
        return sync_account.delay(account, "somebody pressed a button").id
    except DuplicateTask as error:
        return f"under way as {error.task_id}, whose lock ends in {error.expires_in:.0f} s"
