"""The base while a deployment rolls: it takes no lock, and frees those of others."""

from __future__ import annotations

import celery_once_task
from celery import Task


class OnceTask(celery_once_task.OnceTask):
    abstract = True
    running_lock = False  # it would refuse the retry of a task

    def apply_async(self, *args, **options):
        return Task.apply_async(self, *args, **options)
