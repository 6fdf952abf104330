"""Pure decisions: no clock, no I/O, no Celery app, no Redis. Imports only :mod:`celery_dedupe.errors`."""
