"""The base while a deployment rolls: it takes no lock when a task is called, and frees those of others."""

from __future__ import annotations

import celery_singleton
from celery import Task


class Singleton(celery_singleton.Singleton):
    abstract = True

    def apply_async(self, *args, **options):
        return Task.apply_async(self, *args, **options)
