"""Durations as people write them: seconds, ``timedelta``, or ``"90s"``, ``"15m"``, ``"2h"``, ``"7d"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

Duration = float | int | str | timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_SHORTEST, _LONGEST = 0.001, 1e12
_MEND = 'write seconds, a timedelta, or a text such as "500ms", "90s", "15m", "2h" or "7d"'


def seconds(value: object) -> float:
    """Return the duration ``value`` in seconds.

    Raises:
        ValueError: it is no duration, or not between a millisecond and some thousand years. The message says
            how to write one.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"is not a duration: {_MEND}")
        number = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) <= _LONGEST else math.inf
    else:
        raise ValueError(f"is not a duration: {_MEND}")
    if not _SHORTEST <= number <= _LONGEST:
        raise ValueError(f"must be a millisecond or more, and finite: {_MEND}")
    return number


def spoken(duration: float) -> str:
    """Return ``duration``, in seconds, as people say it: ``"1h 30m"``, ``"500ms"``."""
    left = max(round(duration * 1000), 0)
    words = []
    for unit, size in reversed(_UNITS.items()):
        count, left = divmod(left, round(size * 1000))
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words) or "0s"


def about(duration: float) -> str:
    """Return a duration that goes on while people read it: whole seconds, in its two largest units."""
    return " ".join(spoken(int(duration)).split()[:2])
