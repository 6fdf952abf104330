"""Celery apps that tests and the processes they start have in common."""
