"""Code that calls the tasks."""

from __future__ import annotations

from celery_once import AlreadyQueued
from tasks import sync_account


def press_sync(account):
    try:
        sync_account.delay(account, reason="somebody pressed a button")
    except AlreadyQueued as error:
        return f"under way; its lock ends in {error.countdown:.0f} s"
    return "it will be synced"
