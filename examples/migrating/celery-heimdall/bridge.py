"""The base while a deployment rolls: it takes no lock, and frees those of others."""

from __future__ import annotations

import celery_heimdall
from celery import Task


class HeimdallTask(celery_heimdall.HeimdallTask):
    abstract = True

    def apply_async(self, *args, **options):
        return Task.apply_async(self, *args, **options)

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)  # theirs would end a run unseen whose lock another one has left
