"""What a user may import, and nothing by accident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import celery_dedupe
from celery_dedupe import signals

PUBLIC = {
    "ConfigurationError",
    "Dedupe",
    "DedupeError",
    "DeliveryLimitExceeded",
    "Duplicate",
    "DuplicateTask",
    "Lease",
    "LeaseLost",
    "Policy",
    "RateExceeded",
    "StoreUnavailable",
    "UnkeyableArguments",
    "current_lease",
    "duplicate_of",
    "only_after",
}


def test_the_public_names_are_these():
    """Whoever changes them changes what users wrote."""
    assert set(celery_dedupe.__all__) == PUBLIC
    assert list(celery_dedupe.__all__) == sorted(celery_dedupe.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_says_what_it_is(name):
    assert getattr(celery_dedupe, name).__doc__


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("publish_dropped", "PublishDropped"),
        ("run_refused", "RunRefused"),
        ("lock_taken", "LockTaken"),
        ("lock_released", "LockReleased"),
        ("lease_lost", "LostLease"),
        ("ran_unprotected", "RanUnprotected"),
        ("verdict_reached", "VerdictReached"),
    ],
)
def test_each_signal_names_its_payload(name, payload):
    assert getattr(signals, name).__doc__.rstrip(".").endswith(f"gets {payload}")
    assert getattr(signals, payload).__doc__


def test_an_import_opens_nothing_and_needs_no_redis():
    """Claims in memory need no redis-py, and an app that imports its settings needs no server."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from celery import Celery\n"
        "from celery_dedupe import Dedupe\n"
        "app = Celery('a', broker='memory://')\n"
        "@app.task(name='t', dedupe='until_finished')\n"
        "def t(): ...\n"
        "Dedupe(app, url='memory://').init_app()\n"
        "import threading; assert threading.active_count() == 1\n"
        "first, second = t.delay(), t.delay()\n"
        "assert first.id == second.id\n"
    )
    root = Path(celery_dedupe.__file__).parents[1]
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=root, timeout=60)


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (Path(celery_dedupe.__file__).parent / "py.typed").exists()
