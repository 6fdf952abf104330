"""The app that a test describes by environment variables: what ``celery -A tests.apps.basic`` loads."""

from __future__ import annotations

import os

from tests.apps.assembly import AppUnderTest

under_test = AppUnderTest(os.environ, as_current=True)
app = under_test.app
tasks = under_test.tasks
ledger = under_test.ledger
