"""The base while a deployment rolls: it takes no lock when a task is called, and frees those of others."""

from __future__ import annotations

import celery_once
from celery import Task


class QueueOnce(celery_once.QueueOnce):
    abstract = True

    def apply_async(self, *args, **options):
        return Task.apply_async(self, *args, **options)
