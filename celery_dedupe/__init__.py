"""Stops duplicate work in a Celery code base without touching its tasks."""
