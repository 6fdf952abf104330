"""Puts the project's app on a broker in memory, where its tasks may be called without any server."""

from __future__ import annotations

import pytest

pytest_plugins = ["celery.contrib.pytest", "celery_dedupe.testing"]


@pytest.fixture
def celery_app():
    """The app that the fixtures ``dedupe`` and ``celery_worker`` work on."""
    from shop import app

    app.conf.update(broker_url="memory://", result_backend="cache+memory://")
    yield app
    app.control.purge()  # What a test has left in the queue is not for the next test's worker.


@pytest.fixture(scope="session")
def celery_includes():
    """The task by which ``celery_worker`` tells that it is up."""
    return ["celery.contrib.testing.tasks"]
