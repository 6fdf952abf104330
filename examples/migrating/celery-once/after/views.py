"""Code that calls the tasks."""

from __future__ import annotations

from tasks import sync_account

from celery_dedupe import DuplicateTask


def press_sync(account):
    try:
        sync_account.delay(account, reason="somebody pressed a button")
    except DuplicateTask as error:
        return f"under way; its lock ends in {error.expires_in:.0f} s"
    return "it will be synced"
