"""The Celery app."""

from __future__ import annotations

from celery import Celery

from celery_dedupe import Dedupe

app = Celery("legacy")
app.config_from_object("legacy.celeryconfig")
Dedupe(app).init_app()
