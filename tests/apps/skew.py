"""A process whose clock is wrong."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.apps.assembly import AppUnderTest

SKEW = "DEDUPE_TEST_SKEW"  # seconds by which the clock of the process is ahead


def install(under_test: AppUnderTest) -> None:
    """A ``setup``: sets the clock of the process, as far as its Python code can see it, by ``SKEW``."""
    if seconds := float(os.environ.get(SKEW, "0")):
        _put_in_place(time.time, _ahead(time.time, seconds))
        _put_in_place(time.time_ns, _ahead(time.time_ns, int(seconds * 1e9)))
        _put_in_place(datetime, _skewed(timedelta(seconds=seconds)))


def _ahead(clock: Any, by: float) -> Any:
    return lambda: clock() + by


def _skewed(by: timedelta) -> Any:
    class Real(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, datetime)

    class Skewed(datetime, metaclass=Real):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + by

        @classmethod
        def utcnow(cls) -> Any:
            return datetime.now(timezone.utc).replace(tzinfo=None) + by

    return Skewed


def _put_in_place(old: Any, new: Any) -> None:
    """Wherever a module has the old one by whatever name."""
    mine = sys.modules[__name__]
    for module in list(sys.modules.values()):
        if module is not mine:
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
